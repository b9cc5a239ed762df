"""The one judgement all exact-law tests share: a two-sided test of a covered count against its law."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest

# Fewer than 200 laws are tested with fixed seeds: at this level one of them fails by chance in 1 of 500 suites.
LEVEL = 1e-5

Judge = Callable[..., float]


def _p_value(covered: np.ndarray, expected: float | np.ndarray) -> float:
    """Two-sided p-value of `covered` (one entry per trial) with coverage `expected` (one, or one per trial)."""
    from scipy import stats

    hits = np.asarray(covered, dtype=bool)
    assert hits.size >= 200_000, "the law is judged on at least 2 * 10^5 trials"
    if np.ndim(expected) == 0:
        return float(stats.binomtest(int(hits.sum()), hits.size, float(expected)).pvalue)
    each = np.asarray(expected, dtype=float)
    z = (hits.sum() - each.sum()) / np.sqrt((each * (1 - each)).sum())
    return float(2 * stats.norm.sf(abs(z)))


@pytest.fixture(scope="session")
def obeys() -> Judge:
    def judge(covered: np.ndarray, expected: float | np.ndarray) -> bool:
        p = _p_value(covered, expected)
        test = os.environ["PYTEST_CURRENT_TEST"].split("::")[-1].split(" ")[0]
        figures = f"covered {np.mean(covered):.4f}, law {np.mean(expected):.4f}, p = {p:.2g}"
        print(f"{'obeys  ' if p > LEVEL else 'REFUSED'} {figures}  {test}")
        return p > LEVEL

    return judge
