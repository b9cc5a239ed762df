"""The paper's integrated sets, for comparison: **heuristic**, no finite-sample guarantee (METHODS 7.1, 7.2).

A labeling is kept iff each of its entities is in its span's set. Even with the number of entities known this does not
reach its level when difficulty varies with that number, and the index version misses truths that rank after the best
labelings holding each of their entities. The all-O labeling is kept vacuously.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import ceil

import numpy as np
import numpy.typing as npt

from conformal.errors import InvalidArgument
from conformal.full import FullSet, Ranked
from conformal.labels import LabelSpace
from conformal.quantile import Floats, Level, ScoreTable, checked_scores, exact_level
from conformal.scores import EntityMethod, Method
from conformal.scores.integrated_paper import PaperSets
from conformal.subsequence import list_spans, listing_floor, score_spans, with_outside
from conformal.trellis import Potentials, entity_marginals, kbest

LISTED = 100  # the paper's K: sets are looked for among these labelings, a truth beyond them is not covered


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


def decode_paper(
    potentials: Potentials,
    space: LabelSpace,
    *,
    scores: Mapping[str, Floats],
    alpha: Level,
    method: Method,
    entity_method: EntityMethod,
) -> tuple[FullSet, Ranked]:
    """Return one of the paper's integrated sets of a text: **heuristic**, it may cover less than 1 - alpha.

    `scores` are the calibration scores of each class's entities, pooled: (m,), or (m, 2) with the first rank where
    the index is used. Members are looked for among the LISTED best labelings. A labeling's p-value is the smallest of
    its entities' (1 without any), for description; `threshold` is the largest of the classes among the listed entities.
    Open where that is infinite, or where no class has a row: nothing then bounds the set (METHODS 3.4).
    """
    rule = method.score
    if not isinstance(rule, PaperSets):
        raise InvalidArgument(f"expected one of the paper's integrated sets, got {method.name}")
    best = kbest(potentials, LISTED)
    ranked = Ranked.of(best)
    rows, starts, ends, classes = list_spans(best.labels)
    keys, inverse = np.unique(np.column_stack([starts, ends, classes]).reshape(-1, 3), axis=0, return_inverse=True)
    inverse = inverse.ravel()
    first = np.full(len(keys), LISTED + 1, np.int64)
    np.minimum.at(first, inverse, rows + 1)
    marginals = entity_marginals(potentials, space, floor=listing_floor(space, entity_method.p_min))
    p = np.array([marginals.of_span(a, b) for a, b, _ in keys.tolist()]).reshape(len(keys), len(space.classes))
    scored = score_spans(with_outside(p)) if len(keys) else score_spans(np.ones((0, len(space.classes) + 1)))
    own = entity_method.scores(scored, rank=np.broadcast_to(first[:, None], scored.probability.shape))
    own = own[np.arange(len(keys)), keys[:, 2]]  # (E,), or (E, 2): rank, probability score
    predicted = int(np.count_nonzero(rows == 0))
    level = exact_level(alpha) / (2 if rule.index and rule.by_score else 1)
    sidak = predicted if rule.sidak else 0
    kept = np.ones(best.count, np.bool_)
    calibrated = any(len(scores[name]) for name in space.classes)
    p_values, taus = np.ones(len(keys)), [0.0 if calibrated else np.inf]
    reach = 1
    for w, name in enumerate(space.classes):
        here = keys[:, 2] == w
        columns, held = (np.atleast_2d(each.T) for each in (scores[name], own[here]))  # (1 or 2, rows)
        tau = [float(sidak_thresholds(column, level, most=sidak)[sidak]) for column in columns]
        p_values[here] = ScoreTable.of(columns[-1]).p_values(held[-1])
        if here.any():
            # Of a rank and a score that must both be within their thresholds, either one bounds the set.
            taus.append(tau[0] if not rule.by_score or np.isposinf(tau[-1]) else tau[-1])
        if rule.index:
            reach = max(reach, index_reach(first[here], held[0] <= tau[0]))
        if rule.by_score:
            kept[np.unique(rows[np.isin(inverse, np.flatnonzero(here)[held[-1] > tau[-1]])])] = False
    if rule.index:
        kept &= np.arange(1, best.count + 1) <= reach
    least = np.ones(best.count)
    np.minimum.at(least, rows, p_values[inverse])
    tau_most = max(taus)
    size = int(kept.sum()) if np.isfinite(tau_most) else None
    return FullSet(tau_most, size is None, size, kept, -ranked.log_probabilities, least), ranked
