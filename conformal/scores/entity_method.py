"""How the labels of a span are scored: plain scores, and those that combine them with the rank (METHODS 6.1, 6.5)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from conformal.errors import InvalidArgument
from conformal.quantile import Floats
from conformal.scores.score import SpanScore
from conformal.scores.table import SPAN_METHODS, SPAN_SCORES
from conformal.scores.tuned import Choice, Tuned

if TYPE_CHECKING:
    from conformal.subsequence import SpanScores

WEIGHTS = ("hierarchical", "pooled")
SPAN_LIMIT = 100  # how far down the list entities are looked for, where nothing else is said: the paper's K


@dataclass(frozen=True)
class EntityMethod:
    """How spans are scored: the score, the weights, candidate spans and the least number of tasks per class.

    `weights`: "hierarchical" is exact for a random entity of a random task that has one; "pooled" (the
    paper's) counts every entity alike and is approximate. `p_min` delimits candidate spans (METHODS 6.3).
    `n_min` None means that of the strata. `top_k`: P_ent over the K best labelings (METHODS 2.4) instead of
    all. `limit`: entities first found at a higher rank score `+inf` (None where no rank is needed; the frozen cap of
    "conditional"). `tuned` is None until RAPS, naive or conditional have seen a tuning part.

    >>> EntityMethod("raps+nc1").limit, EntityMethod("raps+nc1").needs_tuning, EntityMethod().limit
    (100, True, None)
    """

    name: str = "nc1"
    weights: str = "hierarchical"
    p_min: float = 0.01
    n_min: int | None = None
    top_k: int | None = None
    limit: int | None = None
    tuned: Tuned | None = None

    def __post_init__(self) -> None:
        if self.name not in SPAN_METHODS:
            raise InvalidArgument(f"expected an entity score among {SPAN_METHODS}, got {self.name!r}")
        if self.weights not in WEIGHTS:
            raise InvalidArgument(f"expected weights among {WEIGHTS}, got {self.weights!r}")
        if not 0.0 < self.p_min < 1.0:
            raise InvalidArgument(f"expected p_min strictly between 0 and 1, got {self.p_min}")
        for given, what in ((self.n_min, "n_min"), (self.top_k, "top_k"), (self.limit, "limit")):
            if given is not None and given < 1:
                raise InvalidArgument(f"expected {what} of at least 1, got {given}")
        if self.needs_rank and self.limit is None:
            object.__setattr__(self, "limit", SPAN_LIMIT)

    @property
    def score(self) -> SpanScore:
        """The score, with all its facts."""
        return SPAN_SCORES[self.name]

    @property
    def is_pair(self) -> bool:
        """Whether a label has two scores with a threshold each: (..., 2) instead of (...)."""
        return self.score.is_pair

    @property
    def needs_rank(self) -> bool:
        """Whether nc_idx is needed: the smallest rank whose labeling holds the entity."""
        return self.score.spans_need_rank

    @property
    def needs_tuning(self) -> bool:
        """Whether something must be frozen on a tuning part before calibration."""
        return self.score.tunes and self.tuned is None

    def freeze(self, choice: Choice) -> EntityMethod:
        """Return the method with these values."""
        return replace(self, tuned=choice.tuned, limit=self.limit if choice.limit is None else choice.limit)

    def scores(
        self, scored: SpanScores, *, rank: npt.ArrayLike | None = None, outside: npt.ArrayLike = False
    ) -> Floats:
        """Score labels of spans; `rank` is nc_idx of each (0: not found), `outside` marks the label "O".

        "O" has no rank, so no penalty and no cap: it is judged by its probability. Arrays of one shape; naive gives
        (..., 2): nc_idx, then the probability score. Raises `InvalidArgument` without the ranks a method needs.

        >>> from conformal.subsequence import score_spans
        >>> scored = score_spans([[0.75, 0.25]])
        >>> method = EntityMethod("raps+nc1", tuned=Tuned(lam=0.5, r0=1))
        >>> method.scores(scored, rank=[[3, 0]], outside=[[False, True]]).tolist()
        [[1.25, 0.75]]
        """
        if not self.needs_rank:
            return self.score.base.of_spans(scored)
        if rank is None:
            raise InvalidArgument(f"expected the first rank of every entity for {self.name}, got none")
        given = np.broadcast_to(np.asarray(rank, dtype=np.int64), scored.probability.shape)
        within = (given >= 1) & (given <= (self.limit or SPAN_LIMIT))
        first = np.where(np.asarray(outside, dtype=np.bool_), 1, np.where(within, given, 0))
        return self.score.span_values(scored, first, tuned=self.tuned)
