"""A new threshold version beside the one before it: per pool and class, and by the sizes of sets served lately."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from backend.domain.records import ThresholdRow
from backend.prediction.calibration import Calibration
from backend.store.packed_lists import unpack_ranked
from conformal.errors import RankedListTooShort
from conformal.full import Ranked, threshold_list
from conformal.labels import OUTSIDE
from conformal.prediction import answering_thresholds
from conformal.thresholds import Thresholds

SAMPLED = 256  # served sets that are tried again: enough for a mean, few enough to be no part of a refit's time

Summaries = dict[tuple[str, str], ThresholdRow]


@dataclass(frozen=True)
class PoolChange:
    """One pool (or class) before and after a refit; what was not there before is None.

    `size_before` and `size_after` are the mean sizes of the sets that `sampled` lately served tasks of the pool have
    under either version, cut at the length of the stored lists (an open set counts as that). `guarantee` is what sets
    of the pool say from now on, None for classes.
    """

    kind: str
    name: str
    n_before: int | None
    n_after: int
    tau_before: float | None
    tau_after: float
    guarantee: str | None = None
    size_before: float | None = None
    size_after: float | None = None
    sampled: int = 0

    @property
    def change(self) -> float | None:
        """How much the threshold rose; None where it is new, or infinite before or after."""
        if self.tau_before is None or not (math.isfinite(self.tau_before) and math.isfinite(self.tau_after)):
            return None
        return self.tau_after - self.tau_before


def summarise(thresholds: Thresholds, alpha: str) -> Summaries:
    """Return one row per pool that answers for a known stratum, and one per class."""
    rows: Summaries = {}
    for cell in thresholds.cells:
        pool = thresholds.pool(cell)
        infinite = int(np.isinf(pool.table.scores).sum())
        tau = thresholds.threshold(cell, alpha)
        rows["pool", pool.pool.name] = ThresholdRow("pool", pool.pool.name, pool.n, infinite, tau)
    for label in (*thresholds.classes, OUTSIDE):
        own = thresholds.label_pool(label)
        infinite = int(np.isinf(own.table.scores).sum())
        tau = thresholds.label_threshold(label, alpha) if own.calibrated else np.inf
        rows["class", label] = ThresholdRow("class", label, own.n, infinite, tau)
    return rows


def pool_guarantees(calibration: Calibration) -> dict[str, str]:
    """Return what sets say, by the pool of each known stratum."""
    thresholds = calibration.thresholds
    return {thresholds.pool(cell).pool.name: calibration.guarantee_for(cell).value for cell in thresholds.cells}


def compare(
    before: Summaries, after: Summaries, *, guarantees: Mapping[str, str], sizes: Mapping[str, PoolChange]
) -> tuple[PoolChange, ...]:
    """Join the summaries of two versions; `sizes` holds what `expected_sizes` found."""
    changes = []
    for (kind, name), row in after.items():
        old = before.get((kind, name))
        change = PoolChange(
            kind,
            name,
            None if old is None else old.n,
            row.n,
            None if old is None else old.tau,
            row.tau,
            guarantees.get(name) if kind == "pool" else None,
        )
        tried = sizes.get(name) if kind == "pool" else None
        if tried is not None:
            change = replace(change, size_before=tried.size_before, size_after=tried.size_after, sampled=tried.sampled)
        changes.append(change)
    return tuple(changes)


def expected_sizes(
    served: Sequence[tuple[str, bytes]], before: Calibration | None, after: Calibration, *, alphas: tuple[str, str]
) -> dict[str, PoolChange]:
    """Return the mean size of the sets of lately served units, by pool of the new version.

    `served` is the stratum and the packed lists of each task.

    Sizes are decided on the stored lists, without the model. Integrated sets are no heads of a list: none for those.
    `alphas` are the levels before and after.
    """
    sizes: dict[str, list[tuple[float | None, float]]] = {}
    for stratum, packed in served:
        listed = unpack_ranked(packed)
        beside = tuple(sorted({unit.stratum or stratum for unit in listed.units}))
        for unit in listed.units:
            cell, logs = unit.stratum or stratum, np.array(unit.ranked.log_probabilities)
            rest = -math.inf if unit.ranked.exhausted else float(logs[-1]) if logs.size else -math.inf
            ranked = Ranked(logs, np.zeros((logs.size, 0), np.int16), rest)
            new = _size(ranked, after, cell, beside, alphas[1])
            if new is None or not logs.size:
                continue
            old = None if before is None else _size(ranked, before, cell, beside, alphas[0])
            name = after.thresholds.pool(cell, beside=beside).pool.name
            sizes.setdefault(name, []).append((old, new))
    return {name: _means(name, pairs) for name, pairs in sizes.items()}


def _means(name: str, pairs: list[tuple[float | None, float]]) -> PoolChange:
    old = [size for size, _ in pairs if size is not None]
    return PoolChange(
        "pool",
        name,
        None,
        0,
        None,
        math.inf,
        size_before=float(np.mean(old)) if old else None,
        size_after=float(np.mean([size for _, size in pairs])),
        sampled=len(pairs),
    )


def _size(ranked: Ranked, calibration: Calibration, stratum: str, beside: tuple[str, ...], alpha: str) -> float | None:
    other = None if calibration.fallback is None else calibration.fallback.thresholds
    thresholds = answering_thresholds(calibration.thresholds, other, stratum=stratum, beside=beside)
    method = thresholds.method
    if not method.makes_heads or (method.top_k or 0) > ranked.count:
        return None
    try:
        head = threshold_list(ranked, thresholds.pool(stratum, beside=beside).table, alpha, method=method)
    except RankedListTooShort:
        return float(ranked.count)
    return float(ranked.count if head.size is None else max(1, head.size))
