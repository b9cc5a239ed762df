"""Bad input is refused by name: what was expected, what was got."""

from __future__ import annotations

import numpy as np
import pytest

from conformal import (
    Chain,
    ConformalError,
    InvalidArgument,
    InvalidLabels,
    InvalidPotentials,
    LabelSpace,
    NoLegalLabeling,
    Potentials,
    entity_marginals,
    enumerate_above,
    kbest,
    log_partition,
    log_probability,
    rank_of,
)


def make(**changes: object) -> Potentials:
    parts: dict = {"emissions": np.zeros((2, 3)), "transitions": np.zeros((3, 3)), "start": [0.0] * 3, "end": [0.0] * 3}
    return Potentials(**{**parts, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"emissions": np.zeros((2, 4))}, r"emissions of shape \('any', 3\), got \(2, 4\)"),
        ({"emissions": np.zeros(3)}, "emissions of shape"),
        ({"transitions": np.zeros((3, 2))}, r"transitions of shape \(3, 3\), got \(3, 2\)"),
        ({"end": np.zeros(2)}, r"end of shape \(3,\), got \(2,\)"),
        ({"start": []}, "at least one label"),
        ({"emissions": [[np.nan, 0, 0]]}, "got NaN"),
        ({"transitions": np.full((3, 3), np.inf)}, r"got \+inf"),
        ({"emissions": [["a", "b", "c"]]}, "emissions to be numbers"),
        ({"boundaries": [0]}, r"boundaries inside 1\.\.1, got 0"),
        ({"boundaries": [2]}, "got 2"),
    ],
)
def test_potentials(changes: dict, message: str) -> None:
    with pytest.raises(InvalidPotentials, match=message):
        make(**changes)


@pytest.mark.parametrize("k", [0, -1, 1.5, True, "3"])
def test_k(k: object) -> None:
    with pytest.raises(InvalidArgument, match="k >= 1, got"):
        kbest(make(), k)  # type: ignore[call-overload]


@pytest.mark.parametrize("probability", [0.0, -0.1, 1.1, float("nan")])
def test_probability(probability: float) -> None:
    with pytest.raises(InvalidArgument, match=r"probability in \(0, 1\], got"):
        enumerate_above(make(), probability)


def test_probability_is_given_once() -> None:
    with pytest.raises(InvalidArgument, match="both or neither"):
        enumerate_above(make())
    with pytest.raises(InvalidArgument, match="both or neither"):
        enumerate_above(make(), 0.5, log_probability=-1.0)
    with pytest.raises(InvalidArgument, match="finite log-probability"):
        enumerate_above(make(), log_probability=-np.inf)


def test_other_numbers() -> None:
    with pytest.raises(InvalidArgument, match="NaN"):
        kbest(make(), 1, above=float("nan"))
    with pytest.raises(InvalidArgument, match="threads >= 1, got 0"):
        kbest([make()], 1, threads=0)
    with pytest.raises(InvalidArgument, match="limit >= 1"):
        rank_of(make(), [0, 0], 0)
    with pytest.raises(InvalidArgument, match="floor"):
        entity_marginals(make(), LabelSpace(["A"]), floor=2.0)


@pytest.mark.parametrize("labels", [[0], [0, 0, 0], [0, 3], [0, -1], [0.5, 1.0], [[0, 0]]])
def test_labels(labels: list) -> None:
    with pytest.raises(InvalidLabels, match="expected"):
        log_probability(make(), labels)


def test_one_labeling_per_text() -> None:
    with pytest.raises(InvalidLabels, match=r"one labeling per text \(2\), got 1"):
        log_probability([make(), make()], [[0, 0]])


def test_a_label_space_of_another_size() -> None:
    for function in (lambda p, s: kbest(p, 1, space=s), entity_marginals):
        with pytest.raises(InvalidLabels, match="5 labels"):
            function(make(), LabelSpace(["A", "B"]))


def test_spans_outside_the_text() -> None:
    marginals = entity_marginals(make(), LabelSpace(["A"]))
    for start, end in [(-1, 1), (0, 0), (1, 3)]:
        with pytest.raises(InvalidLabels, match=r"inside 0\.\.2"):
            marginals.of_span(start, end)
    with pytest.raises(InvalidLabels, match="'X'"):
        marginals.probability(0, 1, "X")


def test_no_legal_labeling() -> None:
    for p in (
        make(emissions=np.full((2, 3), -np.inf)),
        make(end=[-np.inf] * 3),
        make(transitions=np.full((3, 3), -np.inf)),
        make(emissions=[[0, 0, -800.0]] * 2, end=[-np.inf] * 3),
        Chain(transitions=[[0.0]], start=[0.0], end=[0.0]).potentials([[0.0]]).constrain(forbidden={0: [0]}),
    ):
        with pytest.raises(NoLegalLabeling, match="check constraints"):
            log_partition(p)


def test_constraints_outside_the_text() -> None:
    with pytest.raises(InvalidArgument, match=r"token in 0\.\.1, got 2"):
        make().constrain(fixed={2: 0})
    with pytest.raises(InvalidArgument, match=r"label id in 0\.\.2, got 3"):
        make().constrain(forbidden={0: [3]})
    with pytest.raises(InvalidArgument, match="groups of label ids"):
        make().fold([[0], []])


def test_all_errors_share_a_base() -> None:
    with pytest.raises(ConformalError):
        make(end=np.zeros(2))


def test_arrays_are_copied_and_frozen() -> None:
    emissions = np.zeros((2, 3))
    p = make(emissions=emissions)
    emissions[0, 0] = 9.0
    assert p.emissions[0, 0] == 0.0
    with pytest.raises(ValueError, match="read-only"):
        p.emissions[0, 0] = 1.0
