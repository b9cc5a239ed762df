"""The exact conditional set: a probability score under a rank cap that was frozen beforehand (METHODS 4.4).

The paper takes its second threshold from the calibration rows that fall inside the first one, which come from the same
rows: approximate (`conditional_paper`, see `conformal.naive.PairTable`). Here the first threshold tau1 is frozen on the
tuning part; the score is nc*(y) where the rank is at most tau1 and `+inf` elsewhere, conformalised once: exact.
"""

from __future__ import annotations

import numpy as np

from conformal.quantile import Level, threshold
from conformal.ranks import Ranks, nc3


def rank_cap(ranks: Ranks, alpha1: Level, *, limit: int) -> int:
    """Return tau1: the rank threshold of these (tuning) rows at level alpha1, `limit` where it is infinite.

    >>> rank_cap(Ranks(np.zeros(4), np.array([1, 1, 2, 7]), np.ones(4)), "0.4", limit=100)
    2
    """
    tau = float(threshold(nc3(ranks), alpha1))
    return limit if np.isposinf(tau) else min(int(tau), limit)
