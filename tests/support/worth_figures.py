"""Figures of a project's worth as `measure` keeps them, for pages that only show them."""

from __future__ import annotations

from typing import Any


def _row(scope: str, name: str, f1: float, *, half: float, naive: float, labels: int = 240) -> dict[str, Any]:
    rates = {"f1": f1, "precision": f1 + 0.02, "recall": f1 - 0.02}
    row: dict[str, Any] = {
        "scope": scope, "name": name, "labels": labels, "with_label": labels, "missing": 0, "assisted": 610,
    }  # fmt: skip
    for rate, value in rates.items():
        row |= {rate: [value, value - half, value + half], f"naive_{rate}": naive, f"gap_{rate}": naive - value}
    return row


def _few(scope: str, name: str, *, labels: int) -> dict[str, Any]:
    row = _row(scope, name, 0.0, half=0.0, naive=0.9, labels=labels) | {"missing": 200 - labels}
    return row | {f"{part}{rate}": None for rate in ("f1", "precision", "recall") for part in ("", "gap_")}


def _saving(blind: int, assisted: int, ratio: float, low: float, high: float, verdict: str) -> dict[str, Any]:
    return {
        "blind": blind, "assisted": assisted, "ratio": ratio, "low": low, "high": high, "verdict": verdict,
        "blind_seconds": 41.0, "assisted_seconds": 41.0 * ratio,
        "blind_seconds_an_entity": 20.5, "assisted_seconds_an_entity": 20.5 * ratio,
    }  # fmt: skip


def _edits(tasks: int, untouched: int, *actions: int) -> dict[str, int]:
    names = ("kept", "relabelled", "moved", "deleted", "added")
    return {"tasks": tasks, "untouched": untouched, **dict(zip(names, actions, strict=True))}


def figures(model: int) -> dict[str, Any]:
    """Return the record of a project under a model."""
    return {
        "model": model,
        "revision": 120,
        "served": 20,
        "at": "2026-11-18T09:30:00+00:00",
        "seconds": 1.2,
        "accuracy": [
            _row("all", "", 0.871, half=0.031, naive=0.934),
            _row("label", "PER", 0.902, half=0.038, naive=0.951),
            _row("label", "LOC", 0.843, half=0.047, naive=0.918),
            _row("language", "de", 0.871, half=0.031, naive=0.934),
            _few("language", "en", labels=31),
        ],
        "saving": {
            "submissions": 850, "blind": 240, "cap": 600.0, "capped": 3, "skipped": {"blind": 2, "assisted": 9},
            "left_out": {"no time": 4, "skipped": 11},
            "total": _saving(240, 610, 0.79, 0.7, 0.88, "saves"),
            "people": [
                _saving(130, 330, 0.74, 0.63, 0.86, "saves") | {"person": 3},
                _saving(110, 280, 0.93, 0.78, 1.1, "not significant") | {"person": 5},
            ],
        },
        "edits": {
            **_edits(610, 430, 1010, 42, 61, 55, 80),
            "people": [
                _edits(330, 210, 520, 30, 45, 35, 60) | {"person": 3},
                _edits(280, 220, 490, 12, 16, 20, 20) | {"person": 5},
            ],
        },
        "agreement": {"tasks": 60, "pairs": 60, "exact": 0.91, "overlapping": 0.95, "alpha": 0.89},
        "left": {
            "tasks": 2300, "known": 2300, "sampled": None, "left": 1450, "blind": 290, "with_places": 460,
            "without_places": 700, "places": 730, "at_random": True, "acceptable": 0,
            "errors": {"value": 402.0, "low": 351.0, "high": 453.0, "corrected": True},
            "seconds": {"total": 49700.0, "low": 46300.0, "high": 53100.0},
        },
    }  # fmt: skip
