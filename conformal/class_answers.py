"""What answers for the classes of spans at one level: the same for every unit, so it is worked out once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from conformal.labels import OUTSIDE
from conformal.quantile import Level
from conformal.subsequence import score_spans
from conformal.thresholds import LabelPool, Thresholds

_LEVELS = 64  # levels that are remembered for thresholds; more are worked out again


@dataclass(frozen=True, eq=False)
class ClassAnswers:
    """The pool of each class and of "O", and what follows from the pools and the level alone.

    `uncalibrated`, `open_labels` and `borrowed` are as in `PredictionSet`.
    """

    pools: Mapping[str, LabelPool]
    uncalibrated: tuple[str, ...]
    open_labels: tuple[str, ...]
    borrowed: tuple[str, ...]


def class_answers(thresholds: Thresholds, fallback: Thresholds | None, alpha: Level) -> ClassAnswers:
    """Return what answers for spans under these thresholds, whose fallback stands in where only it has enough rows."""
    known = thresholds.answers.get((fallback, str(alpha)))
    if known is None:
        pools = label_pools(thresholds, fallback)
        known = ClassAnswers(
            pools,
            tuple(name for name, pool in pools.items() if not pool.calibrated),
            _open_labels(thresholds, pools, alpha),
            tuple(name for name, pool in pools.items() if pool is not thresholds.label_pool(name)),
        )
        if len(thresholds.answers) >= _LEVELS:
            thresholds.answers.clear()
        thresholds.answers[fallback, str(alpha)] = known
    return known


def label_pools(thresholds: Thresholds, fallback: Thresholds | None) -> dict[str, LabelPool]:
    """Return what answers for each class and "O": own rows, the fallback's where only it has enough."""
    pools = {name: thresholds.label_pool(name) for name in (*thresholds.classes, OUTSIDE)}
    if fallback is not None and (fallback.classes, fallback.entity_method) == (
        thresholds.classes,
        thresholds.entity_method,
    ):
        other = {name: fallback.label_pool(name) for name, pool in pools.items() if not pool.calibrated}
        pools |= {name: pool for name, pool in other.items() if pool.calibrated}
    return pools


def _open_labels(thresholds: Thresholds, pools: Mapping[str, LabelPool], alpha: Level) -> tuple[str, ...]:
    """Name calibrated classes whose set may include spans that are no candidates."""
    method = thresholds.entity_method
    # The most a non-candidate can look like a class: P just below p_min, O taking all the rest.
    lowest = method.scores(score_spans([[method.p_min, 1.0 - method.p_min]]), rank=1)[0, 0]
    return tuple(
        name
        for name in thresholds.classes
        if pools[name].calibrated and bool(pools[name].table.contains(lowest, alpha))
    )
