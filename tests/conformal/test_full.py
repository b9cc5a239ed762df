"""Full-sequence sets against the definition, on chains small enough to list every labeling."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from conformal.errors import InvalidArgument, NoLegalLabeling, RankedListTooShort
from conformal.full import Ranked, decode_set, threshold_list
from conformal.quantile import ScoreTable
from conformal.scores import Boundary, Method
from conformal.trellis import KBest, Potentials, kbest
from tests.conformal.trellis import strategies

ALPHA = "0.2"


def everything(potentials: Potentials) -> KBest:
    try:
        best = kbest(potentials, 10**6)
    except NoLegalLabeling:
        assume(False)
        raise
    assert best.exhausted
    return best


def expected_size(best: KBest, calibration: list[float], method: Method, u: float) -> int | None:
    """Count members straight from METHODS 3 and 4; None when the set is open."""
    p = np.exp(best.log_probabilities)
    n = len(calibration)
    k = ceil(Fraction("0.8") * (n + 1))
    if method.name == "nc1":
        scores = -best.log_probabilities
    elif method.name == "nc2":
        scores = np.cumsum(p) - (u * p if method.smooths_scores else 0.0)
    else:
        scores = np.arange(1.0, p.size + 1) - (u if method.smooths_scores else 0.0)
    if method.boundary is Boundary.SMOOTHED and method.name == "nc1":
        if Fraction(u) * (1 + sum(s == np.inf for s in calibration)) > Fraction(ALPHA) * (n + 1):
            return None
        kept = 0
        for score in scores + 0.0:
            greater, equal = sum(s > score for s in calibration), sum(s == score for s in calibration)
            kept += greater + Fraction(u) * (1 + equal) > Fraction(ALPHA) * (n + 1)
        finite_only = sum(s == np.inf for s in calibration) + Fraction(u) > Fraction(ALPHA) * (n + 1)
        return None if finite_only else kept
    tau = np.inf if k > n else sorted(calibration)[k - 1]
    return None if tau == np.inf else int((scores <= tau).sum())


calibrations = st.lists(st.one_of(st.floats(0.0, 6.0), st.just(np.inf)), max_size=20)


@given(
    strategies.tagged(max_length=4),
    calibrations,
    st.sampled_from(["nc1", "nc2", "nc3"]),
    st.sampled_from([Boundary.INCLUDE, Boundary.SMOOTHED]),
    st.floats(0, 1, exclude_max=True),
)
def test_decoded_sets_are_those_of_the_definition(
    chain: tuple[object, Potentials], calibration: list[float], name: str, boundary: Boundary, u: float
) -> None:
    potentials = chain[1]
    best = everything(potentials)
    method = Method(name, boundary, None if name == "nc1" else 10**6)
    table = ScoreTable.of(calibration)
    found, ranked = decode_set(potentials, table, ALPHA, method=method, u=u, max_sequences=10**6, max_shown=3)
    size = expected_size(best, calibration, method, u)
    assert found.open == (size is None)
    assert found.size == size
    assert ranked.count >= 1  # y(1) is always there
    np.testing.assert_array_equal(ranked.labels, best.labels[: ranked.count])
    if size is not None:
        assert int(found.members.sum()) == size
        np.testing.assert_array_equal(found.members, np.arange(ranked.count) < size)
        # The whole list, thresholded again, says the same as decoding just far enough.
        again = threshold_list(Ranked.of(best), table, ALPHA, method=method, u=u, max_sequences=10**6)
        assert again.size == size
        np.testing.assert_array_equal(again.p_values[: ranked.count], found.p_values)
    if boundary is Boundary.INCLUDE:
        assert np.all(found.members == (found.p_values > 0.2)) or np.any(np.isclose(found.p_values, 0.2))


@given(strategies.tagged(max_length=4), st.lists(st.floats(0.0, 6.0), min_size=5, max_size=20), st.integers(1, 6))
def test_a_short_limit_makes_the_set_open_never_cut(
    chain: tuple[object, Potentials], calibration: list[float], limit: int
) -> None:
    potentials = chain[1]
    best = everything(potentials)
    table = ScoreTable.of(calibration)
    size = int((-best.log_probabilities <= table.threshold(ALPHA)).sum())
    found, ranked = decode_set(potentials, table, ALPHA, max_sequences=limit)
    assert ranked.count <= limit
    if size > limit:
        assert found.open
        assert found.size is None
        assert found.members.all()
    else:
        assert not found.open
        assert found.size == size


@pytest.mark.parametrize("boundary", [Boundary.EARLY, Boundary.FULL, Boundary.PAPER])
@pytest.mark.parametrize("name", ["nc1", "nc2", "nc3"])
def test_ablation_rules_decode_as_far_as_they_need(name: str, boundary: Boundary) -> None:
    rng = np.random.default_rng(2)
    potentials = Potentials(
        emissions=rng.normal(size=(6, 3)), transitions=np.zeros((3, 3)), start=np.zeros(3), end=np.zeros(3)
    )
    best = kbest(potentials, 10**6)
    for scale in (0.3, 1.0, 3.0):
        spread = {"nc1": rng.exponential(size=49) * scale * 3, "nc2": rng.random(49) ** (1 / scale)}
        table = ScoreTable.of(spread.get(name, np.ceil(rng.exponential(size=49) * 30 * scale)))
        method = Method(name, boundary, None if name == "nc1" else 10**6)
        whole = threshold_list(Ranked.of(best), table, ALPHA, method=method, u=0.4, max_sequences=10**6)
        found, _ = decode_set(potentials, table, ALPHA, method=method, u=0.4, max_sequences=10**6)
        assert found.size == whole.size
        assert not found.open


def test_top_k_sets_stay_within_the_k_best() -> None:
    rng = np.random.default_rng(3)
    potentials = Potentials(
        emissions=rng.normal(size=(5, 3)), transitions=np.zeros((3, 3)), start=np.zeros(3), end=np.zeros(3)
    )
    table = ScoreTable.of(np.full(50, 50.0))
    for max_sequences in (5, 10_000):
        found, ranked = decode_set(
            potentials, table, ALPHA, method=Method("nc1", top_k=10), max_sequences=max_sequences
        )
        assert (found.size, found.open, ranked.count) == (10, False, 10)
    found, _ = decode_set(potentials, ScoreTable.of([]), ALPHA, method=Method("nc2", top_k=10))
    assert found.open
    with pytest.raises(RankedListTooShort, match="10 best"):
        threshold_list(Ranked.of(kbest(potentials, 4)), table, ALPHA, method=Method("nc1", top_k=10))


def test_empty_sets_list_the_best_labeling() -> None:
    potentials = Potentials(
        emissions=np.zeros((4, 3)), transitions=np.zeros((3, 3)), start=np.zeros(3), end=np.zeros(3)
    )
    table = ScoreTable.of(np.full(50, 0.1))  # all calibration labelings were nearly certain
    found, ranked = decode_set(potentials, table, ALPHA)
    assert (found.size, found.empty, found.open, ranked.count) == (0, True, False, 1)
    assert found.p_values[0] == 1 / 51


def test_stored_lists_answer_until_they_are_too_short() -> None:
    rng = np.random.default_rng(4)
    potentials = Potentials(
        emissions=rng.normal(size=(6, 3)), transitions=np.zeros((3, 3)), start=np.zeros(3), end=np.zeros(3)
    )
    all_of_them = kbest(potentials, 10**6)
    cut = float(-all_of_them.log_probabilities[10])
    listed = Ranked.of(kbest(potentials, 10**6, above=-cut), above=-cut)
    assert listed.count == 11
    assert listed.head(4).rest == listed.log_probabilities[4]
    assert listed.head(99) is listed
    for tau, size in ((cut, 11), (float(-all_of_them.log_probabilities[3]), 4)):
        assert threshold_list(listed, ScoreTable.of(np.full(50, tau)), ALPHA).size == size
    further = ScoreTable.of(np.full(50, float(-all_of_them.log_probabilities[12])))
    with pytest.raises(RankedListTooShort, match="past the threshold"):
        threshold_list(listed, further, ALPHA)
    assert threshold_list(listed, further, ALPHA, max_sequences=11).open
    assert threshold_list(listed, ScoreTable.of([]), ALPHA).open
    nc3 = Method("nc3", limit=1000)
    assert threshold_list(listed, ScoreTable.of(np.full(50, 11.0)), ALPHA, method=nc3).size == 11
    with pytest.raises(RankedListTooShort):
        threshold_list(listed, ScoreTable.of(np.full(50, 12.0)), ALPHA, method=nc3)
    limited = Method("nc3", limit=11)
    assert threshold_list(listed, ScoreTable.of(np.full(50, 12.0)), ALPHA, method=limited).size == 11
    with pytest.raises(InvalidArgument, match="max_sequences"):
        threshold_list(listed, further, ALPHA, max_sequences=0)
