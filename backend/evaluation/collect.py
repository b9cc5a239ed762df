"""Figures of every method as plain numbers that can be stored, averaged and printed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from backend.evaluation.study import Judged, Study
from conformal.evaluation import summarise
from conformal.monitor.coverage import below_target
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
    found: dict[str, npt.NDArray[np.bool_]] = {}
    for w, name in enumerate(d.classes):
        has = np.zeros(len(d), np.bool_)
        has[d["entity.task"][d["entity.label"] == w]] = True
        found[name] = has
    return found


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
    cells = sorted(set(study.cells))
    place = {cell: i for i, cell in enumerate(cells)}
    codes = np.array([place[study.cells[i]] for i in judged.test.tolist()])
    target = 1 - float(alpha)
    summary = summarise(judged.outcomes, target=target, groups=codes)
    made: Figures = {"alpha": alpha, "split": split, **asdict(summary)}
    made["worst_group"] = cells[summary.worst_group] if summary.worst_group >= 0 else ""
    shown = np.where(judged.outcomes.open, 100, np.clip(judged.outcomes.size, 1, 100))
    for kind, (names, every) in groups.items():
        own = every[judged.test]
        made[kind] = {name: _cell(judged, own == i, shown) for i, name in enumerate(names) if np.any(own == i)}
    made["class"] = {name: _cell(judged, has[judged.test], shown) for name, has in classes.items()}
    if thresholds is not None:
        made["laws"] = _laws(study, judged, thresholds, alpha, strata=strata)
    return made


def _cell(judged: Judged, here: npt.NDArray[np.bool_], shown: Ints) -> dict[str, float]:
    if not here.any():
        return {"tasks": 0, "coverage": float("nan"), "size": float("nan")}
    return {
        "tasks": int(here.sum()),
        "coverage": float(judged.outcomes.covered[here].mean()),
        "size": float(shown[here].mean()),
    }


def _laws(study: Study, judged: Judged, thresholds: Thresholds, alpha: str, *, strata: bool) -> list[dict[str, Any]]:
    """Judge the covered count of each pool against the beta-binomial law of this split, on both sides."""
    by_pool: dict[str, list[int]] = {}
    sizes: dict[str, int] = {}
    for at, task in enumerate(judged.test.tolist()):
        cell = study.cells[task] if strata else "all"
        pool = thresholds.pool(cell)
        if not pool.pool.calibrated:
            continue
        by_pool.setdefault(pool.pool.name, []).append(at)
        sizes[pool.pool.name] = pool.n
    found: list[dict[str, Any]] = []
    for name, rows in sorted(by_pool.items()):
        covered, total = int(judged.outcomes.covered[rows].sum()), len(rows)
        n = sizes[name]
        below = below_target(covered, total, n=n, alpha=alpha)
        above = below_target(total - covered, total, n=n, alpha=str(round(1 - float(alpha), 6)))
        found.append({"pool": name, "covered": covered, "tasks": total, "n": n, "below": below, "above": above})
    return found
