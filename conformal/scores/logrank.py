"""nc1 with the logarithm of the rank added: smaller sets than nc1 at the same coverage (METHODS 4.2).

A sharp model spreads too much probability over the far end of its lists: at equal probability a labeling of a late
rank is true less often than one of an early rank. RAPS charges for the rank itself, which is nothing at first and
everything later; the logarithm charges for its order of magnitude, and stops where lists are long anyway. Nothing is
frozen or tuned, so no label is set aside and the score is exact like any other.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from conformal.errors import InvalidArgument
from conformal.quantile import Floats
from conformal.scores.ranks import Ranks
from conformal.scores.score import Score
from conformal.scores.tuned import Tuned

RANK_LIMIT = 100


class LogRank(Score):
    """`-log(P / min(r, limit + 1))`."""

    name = "logrank+nc1"
    limit = RANK_LIMIT
    goes_on = True

    def values(self, ranks: Ranks, *, tuned: Tuned, limit: int | None) -> Floats:
        """Return `log_rank`."""
        return log_rank(ranks.log_probability, ranks.rank, limit=limit or RANK_LIMIT)


def log_rank(log_probability: npt.ArrayLike, rank: npt.ArrayLike, *, limit: int = RANK_LIMIT) -> Floats:
    """Return `-log(P / min(r, limit + 1))`; sets are `{P(y(r)) / r >= c}` up to the limit.

    Rank 0 (not found) counts as `limit + 1`, so a truth far down its list has a finite score, and sets go on by
    probability alone from there. Rises with the rank along a ranked list. `+inf` where P is 0.

    >>> np.exp(-log_rank(np.log([0.5, 0.25, 0.125]), [1, 2, 0], limit=4)).round(4).tolist()
    [0.5, 0.125, 0.025]
    """
    if limit < 1:
        raise InvalidArgument(f"expected a limit of at least 1, got {limit}")
    logs = np.asarray(log_probability, dtype=np.float64)
    ranks = np.asarray(rank, dtype=np.int64)
    return np.asarray(np.log(np.where((ranks < 1) | (ranks > limit), limit + 1, ranks)) - logs)
