"""RAPS: a probability score plus a penalty on the rank (METHODS 4.2, 6.5)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from conformal.errors import InvalidArgument
from conformal.quantile import Floats


def penalty(rank: npt.ArrayLike, *, lam: float, r0: int) -> Floats:
    """Return `lam * max(r - r0, 0)`, `+inf` for rank 0 (not found).

    >>> penalty([1, 3, 5, 0], lam=0.5, r0=3).tolist()
    [0.0, 0.0, 1.0, inf]
    """
    if not (lam >= 0 and np.isfinite(lam)):
        raise InvalidArgument(f"expected lam as a finite number of at least 0, got {lam}")
    if r0 < 0:
        raise InvalidArgument(f"expected r0 of at least 0, got {r0}")
    ranks = np.asarray(rank, dtype=np.int64)
    return np.where(ranks > 0, lam * np.maximum(ranks - r0, 0), np.inf)


def raps(base: npt.ArrayLike, rank: npt.ArrayLike, *, lam: float, r0: int) -> Floats:
    """Return `base + lam * max(rank - r0, 0)`; exact like any other score, lam = 0 gives the base itself.

    `base` is on the scale of a probability: 1 - P or the cumulative probability; for entities 1 - P_ent or
    nc2_ent with `rank` the smallest rank whose labeling holds the entity. Both rise with the rank, so the sum does.

    >>> raps([0.2, 0.9], [1, 4], lam=0.1, r0=2).round(3).tolist()
    [0.2, 1.1]
    """
    return np.asarray(np.asarray(base, dtype=np.float64) + penalty(rank, lam=lam, r0=r0))
