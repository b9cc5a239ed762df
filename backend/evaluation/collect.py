"""Figures of every method as plain numbers that can be stored, averaged and printed."""

from __future__ import annotations

from dataclasses import asdict
from math import lgamma
from typing import Any

import numpy as np
import numpy.typing as npt

from backend.evaluation.study import Judged, Listed, Study
from conformal.evaluation import summarise
from conformal.quantile import rank
from conformal.subsequence import Ints
from conformal.thresholds import Thresholds

Figures = dict[str, Any]


def group_codes(study: Study) -> dict[str, tuple[tuple[str, ...], Ints]]:
    """Return the breakdowns: for each, the names of the groups and the group of every task."""
    d = study.decoded
    lengths = study.strata.length_bins
    bins = np.searchsorted(np.array(study.strata.lengths), d["task.length"], side="left")
    counts = np.minimum(d["task.entities"], 6).astype(np.int64)
    return {
        "language": (d.languages, d["task.language"].astype(np.int64)),
        "length": (lengths, bins.astype(np.int64)),
        "entities": (("0", "1", "2", "3", "4", "5", "6+"), counts),
        "source": (d.sources, d["task.source"].astype(np.int64)),
    }


def class_tasks(study: Study) -> dict[str, npt.NDArray[np.bool_]]:
    """Return, for each class, which tasks have a true entity of it."""
    d = study.decoded
    tasks: dict[str, npt.NDArray[np.bool_]] = {}
    for w, name in enumerate(d.classes):
        has = np.zeros(len(d), np.bool_)
        has[d["entity.task"][d["entity.label"] == w]] = True
        tasks[name] = has
    return tasks


def figures_of(
    study: Study,
    judged: Judged,
    *,
    alpha: str,
    split: int,
    groups: dict[str, tuple[tuple[str, ...], Ints]],
    classes: dict[str, npt.NDArray[np.bool_]],
    thresholds: Thresholds | None = None,
    strata: bool = False,
) -> Figures:
    """Return what is kept of one method, level and split."""
    cells, every = study.cell_codes
    codes = every[judged.test]
    target = 1 - float(alpha)
    summary = summarise(judged.outcomes, target=target, groups=codes)
    figures: Figures = {"alpha": alpha, "split": split, **asdict(summary)}
    shown = np.where(judged.outcomes.open, 100, np.clip(judged.outcomes.size, 1, 100))
    if judged.listed is not None:
        figures |= _listed(judged.listed, judged)
    figures["worst_group"] = cells[summary.worst_group] if summary.worst_group >= 0 else ""
    for kind, (names, all_of) in groups.items():
        own = all_of[judged.test]
        figures[kind] = {name: _cell(judged, own == i, shown) for i, name in enumerate(names) if np.any(own == i)}
    figures["class"] = {name: _cell(judged, has[judged.test], shown) for name, has in classes.items()}
    if thresholds is not None:
        figures["laws"] = _laws(study, judged, thresholds, alpha, strata=strata)
        if strata:
            figures["group_laws"] = [
                law for kind in ("language", "length") for law in _group_laws(figures["laws"], kind)
            ]
    return figures


def _cell(judged: Judged, here: npt.NDArray[np.bool_], shown: Ints) -> dict[str, float]:
    if not here.any():
        return dict.fromkeys(("coverage", "size", "listed_coverage", "listed_size"), float("nan")) | {"tasks": 0}
    figures = {
        "tasks": int(here.sum()),
        "coverage": float(judged.outcomes.covered[here].mean()),
        "size": float(shown[here].mean()),
    }
    if judged.listed is not None:
        figures["listed_coverage"] = float(judged.listed.covered[here].mean())
        figures["listed_size"] = float(np.maximum(judged.listed.size[here], 1).mean())
    return figures


def _listed(listed: Listed, judged: Judged) -> dict[str, float]:
    """Return what is said of sets beside what is listed of them; `most_100` counts as full whatever may go on."""
    size = np.maximum(listed.size, 1)
    return {
        "listed_coverage": float(listed.covered.mean()),
        "listed_size": float(size.mean()),
        "may_go_on": float(listed.may_go_on.mean()),
        "most_100": float(np.where(listed.may_go_on | judged.outcomes.open, 100, np.minimum(size, 100)).mean()),
    }


def _laws(study: Study, judged: Judged, thresholds: Thresholds, alpha: str, *, strata: bool) -> list[dict[str, Any]]:
    """Judge the covered count of each pool against the beta-binomial law of this split, on both sides."""
    names, codes = study.codes_of(judged.test, strata=strata)
    by_pool: dict[str, list[int]] = {}
    for code, name in enumerate(names):
        pool = thresholds.pool(name).pool
        if pool.calibrated:
            by_pool.setdefault(pool.name, []).append(code)
    laws: list[dict[str, Any]] = []
    for name, cells in sorted(by_pool.items()):
        here = np.isin(codes, cells)
        covered, total = int(judged.outcomes.covered[here].sum()), int(here.sum())
        judge = thresholds.pool(names[cells[0]])
        n, infinite = judge.n, bool(np.isposinf(judge.table.threshold(alpha)))
        below, above = tails(coverage_law(total, n=n, alpha=alpha, infinite=infinite), covered)
        laws.append(
            {
                "pool": name,
                "cells": [names[code] for code in cells],
                "covered": covered,
                "tasks": total,
                "n": n,
                "alpha": alpha,
                "infinite": infinite,
                "below": below,
                "above": above,
            }
        )
    return laws


def tails(law: npt.NDArray[np.float64], covered: int) -> tuple[float, float]:
    """Return the chance of so few covered tasks, and of so many, if coverage is at target."""
    return float(min(1.0, law[: covered + 1].sum())), float(min(1.0, law[covered:].sum()))


def _group_laws(laws: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Judge each language or length: the sum of its pools' counts against the convolution of their laws.

    Pools are calibrated apart, so their counts are independent. A pool that reaches over several groups is left out.
    """
    members: dict[str, list[dict[str, Any]]] = {}
    for law in laws:
        parts = {cell.split("/")[0 if kind == "language" else -1] for cell in law["cells"]}
        if len(parts) == 1:
            members.setdefault(parts.pop(), []).append(law)
    group_laws: list[dict[str, Any]] = []
    for name, own in sorted(members.items()):
        masses: npt.NDArray[np.float64] = np.ones(1)
        for law in own:
            each = coverage_law(law["tasks"], n=law["n"], alpha=law["alpha"], infinite=law["infinite"])
            masses = np.asarray(np.convolve(masses, each), dtype=np.float64)
        covered = sum(law["covered"] for law in own)
        below, above = tails(masses, covered)
        group_laws.append(
            {
                "kind": kind,
                "group": name,
                "alpha": own[0]["alpha"],
                "infinite": all(law["infinite"] for law in own),
                "covered": covered,
                "tasks": sum(law["tasks"] for law in own),
                "below": below,
                "above": above,
            }
        )
    return group_laws


def coverage_law(total: int, *, n: int, alpha: str, infinite: bool = False) -> npt.NDArray[np.float64]:
    """Return the probabilities of 0 .. total covered test tasks: BetaBinomial(total; k, n + 1 - k) (METHODS 8.8).

    An infinite threshold (too few labels, or too many of them out of reach) covers every task for certain.

    >>> coverage_law(2, n=1, alpha="0.5").round(4).tolist()  # one calibration task: coverage is uniform
    [0.3333, 0.3333, 0.3333]
    """
    k = rank(n, alpha)
    if k > n or infinite:
        certain = np.zeros(total + 1)
        certain[-1] = 1.0
        return certain
    hits = np.arange(total + 1)
    logs = np.array([_log_ways(total, h) + _log_beta(h + k, total - h + n + 1 - k) for h in hits.tolist()])
    return np.asarray(np.exp(logs - _log_beta(k, n + 1 - k)), dtype=np.float64)


def _log_ways(total: int, hits: int) -> float:
    return lgamma(total + 1) - lgamma(hits + 1) - lgamma(total - hits + 1)


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)
