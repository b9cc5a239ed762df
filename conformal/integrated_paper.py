"""The paper's integrated sets, for comparison: **heuristic**, no finite-sample guarantee (METHODS 7.1, 7.2).

A labeling is kept iff each of its entities is in its span's set. Even with the number of entities known this does not
reach its level when difficulty varies with that number, and the index version misses truths that rank after the best
labelings holding each of their entities. The all-O labeling is kept vacuously.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import numpy as np
import numpy.typing as npt

from conformal.errors import InvalidArgument
from conformal.quantile import Bools, Floats, Level, checked_scores, exact_level

WORTH = "heuristic"  # said wherever these sets are described


def sidak_rank(n: int, alpha: Level, *, entities: int) -> int:
    """Return the least k with `k^s >= (1 - alpha)(n + 1)^s`, s = max(1, entities): the exact Šidák rank.

    >>> sidak_rank(99, "0.1", entities=1), sidak_rank(99, "0.1", entities=2), sidak_rank(9, "0.05", entities=3)
    (90, 95, 10)
    """
    if n < 0 or entities < 0:
        raise InvalidArgument(f"expected counts of at least 0, got n={n}, entities={entities}")
    s = max(1, entities)
    need = (1 - exact_level(alpha)) * Fraction(n + 1) ** s
    k: int = max(1, ceil(float(1 - exact_level(alpha)) ** (1 / s) * (n + 1)) - 2)
    while k**s < need:
        k += 1
    return k


def sidak_thresholds(scores: npt.ArrayLike, alpha: Level, *, most: int) -> Floats:
    """Return the threshold of one class's calibration entities for s = 0 .. most predicted entities (most + 1,).

    Entities are pooled, as in the paper: each counts alike.
    """
    ordered = np.sort(checked_scores(scores).ravel())
    ranks = [sidak_rank(ordered.size, alpha, entities=s) for s in range(most + 1)]
    return np.array([ordered[k - 1] if k <= ordered.size else np.inf for k in ranks])


def keeps_all(entity_kept: Bools, offsets: npt.NDArray[np.int64]) -> Bools:
    """Whether every entity of each labeling is kept; rows `offsets[r]:offsets[r + 1]` belong to labeling r.

    A labeling without entities is kept (METHODS 7.2).

    >>> keeps_all(np.array([True, False, True]), np.array([0, 2, 2, 3])).tolist()
    [False, True, True]
    """
    missing = np.concatenate([[0], np.cumsum(~entity_kept)])
    return np.asarray(missing[offsets[1:]] == missing[offsets[:-1]])


def index_reach(first_ranks: npt.ArrayLike, allowed: npt.ArrayLike) -> int:
    """Return how many labelings C_idx keeps: the largest first rank among the allowed entities, at least 1.

    `first_ranks` (entities,) is the smallest rank whose labeling holds the entity (0: none), `allowed` whether that
    rank is within its class's threshold. The proposition behind it is false: a truth {A, B} may rank after the best
    labeling with A and the best with B.

    >>> index_reach([1, 2, 9], [True, True, False])
    2
    """
    ranks = np.asarray(first_ranks, dtype=np.int64)
    kept = ranks[np.asarray(allowed, dtype=np.bool_)]
    return int(kept.max()) if kept.size else 1
