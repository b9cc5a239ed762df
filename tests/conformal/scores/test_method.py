"""Scores on rows and on ranked lists, conventions and draws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal.errors import InvalidArgument, InvalidScores
from conformal.labels import LabelSpace
from conformal.metrics import covers
from conformal.prediction import predict_set
from conformal.quantile import ScoreTable, StackedTable
from conformal.rows import TaskRows
from conformal.scores import SCORES, Boundary, Method, Ranks, boundary_u, cumulate, hash_u, previous_scores
from conformal.thresholds import calibrate
from conformal.trellis import Potentials

lists = st.lists(st.floats(0.001, 1.0), min_size=1, max_size=12).map(
    lambda shares: np.log(np.sort(np.array(shares) / (sum(shares) + 0.1))[::-1])
)


@given(lists, st.floats(0, 1, exclude_max=True))
def test_scores_of_a_list_follow_their_definitions(logs: np.ndarray, u: float) -> None:
    ranks = Ranks.of_list(logs)
    p = np.exp(logs)
    np.testing.assert_array_equal(Method("nc1").scores(ranks), -logs)
    np.testing.assert_allclose(Method("nc2").scores(ranks), [p[: r + 1].sum() for r in range(p.size)])
    np.testing.assert_array_equal(Method("nc3").scores(ranks), np.arange(1, p.size + 1))
    draws = np.full(p.size, u)
    smooth = Method("nc2", Boundary.SMOOTHED).scores(ranks, u=draws)
    np.testing.assert_allclose(smooth, [p[: r + 1].sum() - u * p[r] for r in range(p.size)], atol=1e-12)
    np.testing.assert_allclose(Method("nc3", Boundary.SMOOTHED).scores(ranks, u=draws), np.arange(1, p.size + 1) - u)
    for name in ("nc1", "nc2", "nc3"):
        for boundary in Boundary:
            scores = Method(name, boundary).scores(ranks, u=draws)
            assert np.all(np.diff(scores) >= -1e-15)  # a set is a head of the list


@given(lists)
def test_the_top_k_convention_renormalises_and_forgets_the_rest(logs: np.ndarray) -> None:
    k = max(1, logs.size - 2)
    mass = np.exp(logs[:k]).sum()
    ranks = Ranks.of_list(logs)
    ranks = Ranks(ranks.log_probability, ranks.rank, ranks.cumulative, np.full(logs.size, mass))
    nc1 = Method("nc1", top_k=k).scores(ranks)
    np.testing.assert_allclose(np.exp(-nc1[:k]).sum(), 1.0)
    assert np.all(nc1[k:] == np.inf)
    nc2 = Method("nc2", top_k=k).scores(ranks)
    assert nc2[k - 1] == pytest.approx(1.0)
    assert np.all(nc2[k:] == np.inf)
    assert np.all(Method("nc3", top_k=k).scores(ranks)[k:] == np.inf)
    with pytest.raises(InvalidScores, match="mass"):
        Method("nc1", top_k=k).scores(Ranks.of_list(logs))


def test_labels_out_of_reach_score_infinity() -> None:
    ranks = Ranks(np.array([-1.0, -np.inf, -9.0]), np.array([2, 0, 0]), np.array([0.8, np.inf, np.inf]))
    assert Method("nc1").scores(ranks).tolist() == [1.0, np.inf, 9.0]  # nc1 needs no rank
    assert Method("nc2").scores(ranks).tolist() == [0.8, np.inf, np.inf]
    assert Method("nc3").scores(ranks).tolist() == [2.0, np.inf, np.inf]
    assert Method("nc3", limit=1).scores(ranks).tolist() == [np.inf] * 3
    u = np.full(3, 0.5)
    assert Method("nc3", Boundary.SMOOTHED).scores(ranks, u=u).tolist() == [1.5, np.inf, np.inf]


def test_sums_of_a_longer_list_begin_with_those_of_a_shorter() -> None:
    logs = np.log(np.sort(np.random.default_rng(0).dirichlet(np.ones(500)))[::-1])
    np.testing.assert_array_equal(cumulate(logs)[:77], cumulate(logs[:77]))


@given(lists, st.lists(st.floats(0.0, 3.0), min_size=3, max_size=20), st.floats(0, 1, exclude_max=True))
def test_boundary_rules_nest(logs: np.ndarray, calibration: list[float], u: float) -> None:
    table = ScoreTable.of(calibration)
    found = {}
    for boundary in Boundary:
        method = Method("nc1", boundary)
        scores = method.scores(Ranks.of_list(logs))
        draws = np.full(scores.size, u)
        members = method.members(scores, table, "0.3", previous=previous_scores(scores), u=draws)
        assert np.all(np.diff(members.astype(int)) <= 0)
        found[boundary] = int(members.sum())
        stacked = method.members(
            scores,
            StackedTable(np.tile(calibration, (scores.size, 1))),
            "0.3",
            previous=previous_scores(scores),
            u=draws,
        )
        np.testing.assert_array_equal(stacked, members)
    assert found[Boundary.EARLY] <= found[Boundary.INCLUDE]
    assert found[Boundary.SMOOTHED] <= found[Boundary.INCLUDE]
    assert found[Boundary.EARLY] <= found[Boundary.PAPER] <= found[Boundary.FULL]
    assert found[Boundary.FULL] == min(found[Boundary.EARLY] + 1, logs.size)


def test_draws_are_uniform_and_fixed_by_their_names() -> None:
    draws = np.array([boundary_u("secret", 3, task) for task in range(4000)])
    assert np.all((draws >= 0) & (draws < 1))
    assert abs(draws.mean() - 0.5) < 4 * np.sqrt(1 / 12 / 4000)
    assert np.unique(draws).size == 4000
    assert boundary_u("secret", 3, 7) == draws[7] == hash_u("secret", 3, 7, "boundary")
    assert boundary_u("other", 3, 7) != draws[7]
    assert boundary_u("secret", "3.5", 7) != boundary_u("secret", "3", "57")


def test_the_boundary_include_needs_no_draw() -> None:
    """Rows and tasks without u: the same thresholds, coverage and sets as with any, for every score of heads."""
    rng = np.random.default_rng(4)
    space = LabelSpace(["PER"])
    text = Potentials(
        emissions=rng.normal(0, 1.5, (4, 3)),
        transitions=np.where(space.allowed, 0.0, -np.inf),
        start=np.where(space.allowed_start, 0.0, -np.inf),
        end=np.zeros(3),
    )
    logs = -rng.exponential(2.0, 300)
    columns = {"rank": rng.geometric(0.3, 300), "cumulative": rng.uniform(0.3, 1.0, 300)}
    plain = TaskRows.of(["en/1-10"] * 300, logs, **columns)
    drawn = TaskRows.of(["en/1-10"] * 300, logs, u=rng.random(300), **columns)
    assert plain.u is None
    for name in SCORES:
        if not Method(name).makes_heads:
            continue
        assert not Method(name).needs_u
        without, given = (calibrate(rows, classes=["PER"], method=Method(name)) for rows in (plain, drawn))
        assert without.to_bytes() == given.to_bytes()
        np.testing.assert_array_equal(covers(without, plain, "0.1").covered, covers(given, drawn, "0.1").covered)
        sets = [predict_set(text, space, stratum="en/1-10", thresholds=without, alpha="0.1", u=u) for u in (None, 0.25)]
        assert sets[0] == sets[1]


def test_bad_input_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="a method among"):
        Method("nc9")
    with pytest.raises(InvalidArgument, match="boundary rule among"):
        Method("nc1", "nope")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="limit"):
        Method("nc3", limit=0)
    with pytest.raises(InvalidScores, match="best first"):
        Ranks.of_list([-2.0, -1.0])
    ranks = Ranks.of_list([-1.0, -2.0])
    with pytest.raises(InvalidArgument, match="expected u"):
        Method("nc2", Boundary.SMOOTHED).scores(ranks)
    table = ScoreTable.of([1.0] * 20)
    with pytest.raises(InvalidArgument, match="expected u"):
        Method("nc1", Boundary.SMOOTHED).members([1.0], table, "0.1")
    with pytest.raises(InvalidArgument, match="expected u"):
        Method("nc1", Boundary.PAPER).members([1.0], table, "0.1")
    with pytest.raises(InvalidArgument, match="previous"):
        Method("nc1", Boundary.FULL).members([1.0], table, "0.1")
    with pytest.raises(InvalidScores, match="NaN"):
        Method("nc1").scores(Ranks(np.array([np.nan]), np.array([1]), np.array([0.5])))
