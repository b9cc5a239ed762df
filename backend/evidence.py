"""Kinds of evidence, and what thresholds fitted on them are worth (METHODS 8.2)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from backend.predictor import Guarantee


class Evidence(StrEnum):
    """How the label of a calibration row came about."""

    BLIND = "blind"  # a person labelled a random task without seeing a prediction
    FILE = "file"  # from a labelled file that the user vouches for
    ASSISTED = "assisted"  # a person confirmed or corrected a prelabel of a random task


_CLEAN = frozenset({Evidence.BLIND, Evidence.FILE})


def choose_evidence(counts: dict[str, int], *, n_min: int) -> frozenset[str]:
    """Return the kinds to fit on: the clean ones as soon as there are `n_min` rows of them, else all.

    Decided by counts alone, never by what the labels say (METHODS 8.2, 8.5).

    >>> sorted(choose_evidence({"blind": 40, "assisted": 900}, n_min=100))
    ['assisted', 'blind']
    >>> sorted(choose_evidence({"blind": 40, "file": 60, "assisted": 900}, n_min=100))
    ['blind', 'file']
    """
    clean = {kind for kind in counts if kind in _CLEAN}
    if sum(counts[kind] for kind in clean) >= n_min:
        return frozenset(clean)
    return frozenset(counts)


def worth(kinds: Iterable[str], *, rows: int) -> Guarantee:
    """Return what thresholds fitted on rows of these kinds entitle us to say."""
    if not rows:
        return Guarantee.NONE
    return Guarantee.OWN if set(kinds) <= _CLEAN else Guarantee.ASSISTED
