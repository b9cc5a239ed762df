"""Kinds of evidence, and what thresholds fitted on them are worth (METHODS 8.2).

Everything here is decided by counts, never by what the labels say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from backend.domain.guarantee import Guarantee
from backend.domain.records import Cell
from conformal.monitor.coverage import clopper_pearson
from conformal.quantile import Bools, Floats
from conformal.strata import EMPTY, SEEN


class Evidence(StrEnum):
    """How the label of a calibration row came about."""

    BLIND = "blind"  # a person labelled a random task without seeing a prediction
    FILE = "file"  # from a labelled file that the user vouches for
    ASSISTED = "assisted"  # a person confirmed or corrected a prelabel of a random task


class Policy(StrEnum):
    """Which rows thresholds may rest on (`SURESPAN_EVIDENCE`)."""

    AUTO = "auto"  # clean rows as soon as there are N_MIN of them, else all
    BLIND = "blind"  # clean rows only
    ALL = "all"


_CLEAN = frozenset({Evidence.BLIND, Evidence.FILE})


def is_clean(kind: str) -> bool:
    """Whether labels of this kind were made without a prelabel in view, or are vouched for."""
    return kind in _CLEAN


def choose_evidence(counts: Mapping[str, int], *, n_min: int, policy: str = Policy.AUTO) -> frozenset[str]:
    """Return the kinds to fit on: with `auto`, the clean ones as soon as there are `n_min` rows of them, else all.

    Decided by counts alone, never by what the labels say (METHODS 8.2, 8.5).

    >>> sorted(choose_evidence({"blind": 40, "assisted": 900}, n_min=100))
    ['assisted', 'blind']
    >>> sorted(choose_evidence({"blind": 40, "file": 60, "assisted": 900}, n_min=100))
    ['blind', 'file']
    >>> sorted(choose_evidence({"blind": 40, "assisted": 900}, n_min=100, policy="blind"))
    ['blind']
    """
    clean = frozenset(kind for kind in counts if kind in _CLEAN)
    enough = sum(counts[kind] for kind in clean) >= n_min
    if policy == Policy.BLIND or (policy == Policy.AUTO and enough):
        return clean
    return frozenset(counts)


def count_evidence(cells: Iterable[Cell]) -> dict[str, int]:
    """Return how many labelled tasks of each kind there are, of texts that can be pooled with others.

    Texts without words and training texts are left out: they answer for their own kind only (METHODS 5.4), so any
    number of them leaves every other stratum without thresholds.
    """
    counts: dict[str, int] = {}
    for cell in cells:
        if cell.stratum not in (EMPTY, SEEN) and cell.n:
            counts[cell.evidence] = counts.get(cell.evidence, 0) + cell.tasks
    return counts


def worth(kinds: Iterable[str], *, rows: int) -> Guarantee:
    """Return what thresholds fitted on rows of these kinds entitle us to say."""
    if not rows:
        return Guarantee.NONE
    return Guarantee.OWN if set(kinds) <= _CLEAN else Guarantee.ASSISTED


@dataclass(frozen=True)
class Gap:
    """How much more often people left the best labeling as it was when they saw it than they choose it unseen.

    Both kinds of rows are random samples of one collection, so without any influence of the prelabel the two shares
    differ by chance only. "Accepted" means that the label is the model's best labeling.

    >>> gap = Gap(assisted_accepted=850, assisted=1000, blind_accepted=140, blind=200)
    >>> round(gap.value, 3), [round(end, 3) for end in gap.interval], gap.detected
    (0.15, [0.052, 0.253], True)
    """

    assisted_accepted: int
    assisted: int
    blind_accepted: int
    blind: int

    @property
    def value(self) -> float | None:
        """The difference of the shares, None while one of the kinds has no row."""
        if not (self.assisted and self.blind):
            return None
        return self.assisted_accepted / self.assisted - self.blind_accepted / self.blind

    @property
    def interval(self) -> tuple[float, float]:
        """An interval that holds the true difference with probability at least 0.95 at one time fixed beforehand.

        Two exact intervals at 0.975 each: whatever the shares are, both hold with probability 0.95 (Bonferroni).
        """
        low, high = clopper_pearson(self.assisted_accepted, self.assisted, error="0.025")
        blind_low, blind_high = clopper_pearson(self.blind_accepted, self.blind, error="0.025")
        return low - blind_high, high - blind_low

    @property
    def detected(self) -> bool:
        """Whether chance does not explain the difference."""
        return self.value is not None and self.interval[0] > 0

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        known = self.value is not None
        return {
            "assisted": {"accepted": self.assisted_accepted, "total": self.assisted},
            "blind": {"accepted": self.blind_accepted, "total": self.blind},
            "gap": self.value,
            "interval_95": list(self.interval) if known else None,
            "detected": self.detected,
        }


def gap_of(cells: Iterable[Cell], accepted: Mapping[int, int]) -> Gap:
    """Return the gap from the counters of calibration cells; `accepted` counts tasks of rank 1 by cell id."""
    counts = {kind: [0, 0] for kind in Evidence}
    for cell in cells:
        held = counts[Evidence(cell.evidence)]
        held[0] += accepted.get(cell.id, 0)
        held[1] += cell.tasks
    return Gap(*counts[Evidence.ASSISTED], *counts[Evidence.BLIND])


def row_weights(stored: Floats, first: Bools | None = None) -> Floats:
    """Return the weights of calibration rows from 1 over their selection probabilities (METHODS 3.7), 1 on average.

    `first` marks the first unit of each task, so that the average is one of tasks; None: every row is a task.

    Rows of probability 1 come from a stream in which every task may calibrate and a random part was labelled: each is
    a random task of the collection and weighs 1. Audit rows were selected with a known probability; where it changed,
    tasks that were first shown later had another chance, and review order decides what is shown when. So they are
    weighed against one another by 1/probability, and as a whole count as many rows as they are.

    >>> row_weights(np.array([1.0, 10.0, 10.0])).tolist(), row_weights(np.array([1.0, 10.0, 30.0])).tolist()
    ([1.0, 1.0, 1.0], [1.0, 0.5, 1.5])
    """
    weights = np.ones(stored.size)
    drawn = stored != 1.0
    if np.any(drawn):
        chosen = stored[drawn]
        # Equal ones are not divided by a mean that rounding has moved.
        once = chosen if first is None else stored[drawn & first]
        weights[drawn] = 1.0 if np.all(chosen == chosen[0]) else chosen / once.mean()
    return weights
