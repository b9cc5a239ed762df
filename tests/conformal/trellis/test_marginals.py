"""Partition, probabilities and marginals against full enumeration, and in the ranges where floats run out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from conformal import (
    Chain,
    LabelSpace,
    Potentials,
    entity_marginals,
    kbest,
    log_partition,
    log_probability,
    token_marginals,
)
from conformal.trellis.forward import run_forward
from tests.conformal.trellis import strategies
from tests.support import oracles


@given(strategies.potentials(), st.data())
def test_log_probability_equals_enumeration(p: Potentials, data: st.DataObject) -> None:
    ranked = oracles.all_labelings(p)
    assume(ranked)
    log_z = oracles.log_sum([s for s, _ in ranked])
    np.testing.assert_allclose(log_partition(p), log_z, rtol=1e-12, atol=1e-9)
    labels = data.draw(st.tuples(*[st.integers(0, p.label_count - 1)] * p.length))
    expected = oracles.score(p, labels) - log_z
    if expected == -math.inf:
        assert log_probability(p, labels) == -math.inf
    else:
        np.testing.assert_allclose(log_probability(p, labels), expected, rtol=1e-12, atol=1e-9)


@given(strategies.tagged())
def test_entity_marginals_equal_enumeration(made: tuple[LabelSpace, Potentials]) -> None:
    space, p = made
    assume(oracles.all_labelings(p))
    masses = oracles.span_masses(p, space)
    marginals = entity_marginals(p, space, floor=0.0)
    for a in range(p.length):
        for b in range(a + 1, p.length + 1):
            expected = [masses.get((a, b, name), 0.0) for name in space.classes]
            np.testing.assert_allclose(marginals.of_span(a, b), expected, rtol=1e-9, atol=1e-12)
            outside = max(0.0, 1.0 - sum(expected))
            np.testing.assert_allclose(marginals.probability(a, b, "O"), outside, atol=1e-9)
    rows = zip(marginals.starts, marginals.ends, marginals.classes, marginals.probabilities, strict=True)
    listed = {(a, b, space.classes[w]): q for a, b, w, q in rows}
    assert all(q > 0.0 for q in listed.values())
    assert {key for key, q in masses.items() if q > 1e-12} <= set(listed)
    for (a, b, name), q in listed.items():
        assert q == marginals.probability(a, b, name)


@given(strategies.tagged(), st.floats(1e-9, 1.0))
def test_the_floor_leaves_nothing_out(made: tuple[LabelSpace, Potentials], floor: float) -> None:
    space, p = made
    assume(oracles.all_labelings(p))
    everything = entity_marginals(p, space, floor=0.0)
    above = entity_marginals(p, space, floor=floor)
    # Pruning compares a bound with the floor; rounding of that bound is allowed for, a lost span is not.
    kept = set(zip(above.starts.tolist(), above.ends.tolist(), above.classes.tolist(), strict=True))
    for a, b, w, q in zip(
        everything.starts.tolist(),
        everything.ends.tolist(),
        everything.classes.tolist(),
        everything.probabilities.tolist(),
        strict=True,
    ):
        if q >= floor * (1 + 1e-9):
            assert (a, b, w) in kept
        if q < floor:
            assert (a, b, w) not in kept


@given(strategies.tagged(max_length=5))
def test_marginals_add_up_at_every_token(made: tuple[LabelSpace, Potentials]) -> None:
    space, p = made
    assume(oracles.all_labelings(p))
    tokens = token_marginals(p)
    np.testing.assert_allclose(tokens.sum(axis=1), 1.0, rtol=1e-9)
    marginals = entity_marginals(p, space, floor=0.0)
    inside = np.zeros(p.length)
    for a, b, q in zip(marginals.starts, marginals.ends, marginals.probabilities, strict=True):
        inside[a:b] += q
    np.testing.assert_allclose(inside + tokens[:, 0], 1.0, rtol=1e-9)


def test_marginals_add_up_on_a_long_text() -> None:
    space, transitions, start, end = oracles.random_chain(7, 18)
    p = Chain(transitions=transitions, start=start, end=end).potentials(
        np.random.default_rng(0).normal(size=(60, len(space))), boundaries=[10, 33]
    )
    marginals = entity_marginals(p, space, floor=0.0)
    inside = token_marginals(p)[:, 0].copy()
    for a, b, q in zip(marginals.starts, marginals.ends, marginals.probabilities, strict=True):
        inside[a:b] += q
    np.testing.assert_allclose(inside, 1.0, rtol=1e-9)
    # Adjacent entities of one class: B-w after I-w closes the first, by definition and not by subtraction.
    best = kbest(p, 1, space=space)
    assert best.spans is not None
    a, b = int(best.spans.starts[0]), int(best.spans.ends[0])
    assert 0.0 < marginals.of_span(a, b).sum() <= 1.0


def extreme_chain(peak: float) -> tuple[LabelSpace, Potentials]:
    """An illegal label (I at the start) dominates by `peak` nats."""
    space = LabelSpace(["A"])
    chain = Chain(
        transitions=np.where(space.allowed, 0.0, -np.inf),
        start=np.where(space.allowed_start, 0.0, -np.inf),
        end=np.zeros(3),
    )
    emissions = np.array([[0.0, 0.0, peak], [0.0, 0.0, peak], [0.0, 0.0, 0.0]])
    return space, chain.potentials(emissions)


@pytest.mark.parametrize("peak", [10.0, 200.0, 800.0, 5000.0])
def test_a_dominating_illegal_label_does_not_break_the_sums(peak: float) -> None:
    space, p = extreme_chain(peak)
    ranked = oracles.all_labelings(p)
    np.testing.assert_allclose(log_partition(p), oracles.log_sum([s for s, _ in ranked]), rtol=1e-12)
    tokens = token_marginals(p)
    assert np.isfinite(tokens).all()
    np.testing.assert_allclose(tokens.sum(axis=1), 1.0, rtol=1e-9)
    marginals = entity_marginals(p, space, floor=0.0)
    for (a, b, name), q in oracles.span_masses(p, space).items():
        np.testing.assert_allclose(marginals.probability(a, b, name), q, rtol=1e-9, atol=1e-300)


def test_the_log_domain_takes_over_only_where_needed() -> None:
    assert run_forward(extreme_chain(10.0)[1]).scaled
    assert not run_forward(extreme_chain(800.0)[1]).scaled


def test_mass_that_underflows_early_and_wins_late_is_kept() -> None:
    # Label 1 looks 400 nats worse at each of two tokens, then is the only way to finish.
    chain = Chain(transitions=[[0.0, -np.inf], [-np.inf, 0.0]], start=[0.0, 0.0], end=[-np.inf, 0.0])
    p = chain.potentials([[0.0, -400.0], [0.0, -400.0], [0.0, 0.0]])
    assert log_partition(p) == -800.0
    np.testing.assert_array_equal(token_marginals(p), [[0.0, 1.0]] * 3)


def test_small_probabilities_keep_their_digits() -> None:
    # A closing term got by subtraction would lose all digits of a probability of about 1e-18.
    space = LabelSpace(["A"])
    chain = Chain(
        transitions=np.where(space.allowed, 0.0, -np.inf),
        start=np.where(space.allowed_start, 0.0, -np.inf),
        end=np.zeros(3),
    )
    p = chain.potentials([[-50.0, 40.0, 0.0], [0.0, -2.0, 40.0]])
    expected = math.exp(40 + math.log(math.exp(0.0) + math.exp(-2.0)) - log_partition(p))
    assert expected < 1e-16
    np.testing.assert_allclose(entity_marginals(p, space).probability(0, 1, "A"), expected, rtol=1e-12)


@given(st.data())
def test_folding_adds_probabilities(data: st.DataObject) -> None:
    space = LabelSpace(["A", "B"])
    N = data.draw(st.integers(1, 3))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    p = Chain(
        transitions=np.where(space.allowed, 0.0, -np.inf),
        start=np.where(space.allowed_start, 0.0, -np.inf),
        end=np.zeros(5),
    ).potentials(rng.normal(size=(N, 5)))
    smaller, groups = space.fold(["B"])
    folded = p.fold(groups)
    assert folded.label_count == len(smaller) == 3
    assert p.fold(groups).chain is folded.chain  # made once for all texts
    np.testing.assert_allclose(folded.emissions[:, 0], np.log(np.exp(p.emissions[:, :3]).sum(axis=1)), rtol=1e-12)
    np.testing.assert_array_equal(folded.emissions[:, 1:], p.emissions[:, 3:])
    assert len({tuple(y) for y in kbest(folded, 1000).labels.tolist()}) == kbest(folded, 1000).count
