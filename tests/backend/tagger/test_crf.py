import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.tagger.crf import chain_loss
from backend.tagger.viterbi import best_labels
from conformal.labels import LabelSpace


def draw(seed: int, lengths: list[int], *, legal: bool) -> tuple[torch.Tensor, ...]:
    rng = np.random.default_rng(seed)
    space = LabelSpace(["X"])
    L, N = len(space), max(lengths)
    emissions = torch.from_numpy(rng.normal(0, 2, (len(lengths), N, L)))
    transitions = torch.from_numpy(rng.normal(0, 1, (L, L)))
    start, end = torch.from_numpy(rng.normal(0, 1, L)), torch.from_numpy(rng.normal(0, 1, L))
    if legal:
        transitions = transitions.masked_fill(~torch.from_numpy(space.allowed.copy()), -torch.inf)
        start = start.masked_fill(~torch.from_numpy(space.allowed_start.copy()), -torch.inf)
    labels = torch.zeros(len(lengths), N, dtype=torch.long)
    for row, length in enumerate(lengths):
        ids, _ = space.repair(rng.integers(0, L, length))
        labels[row, :length] = torch.from_numpy(ids.astype(np.int64))
    return emissions, transitions, start, end, labels


def enumerated(emissions: torch.Tensor, transitions: torch.Tensor, start: torch.Tensor, end: torch.Tensor) -> dict:
    """Score of every labeling of one text, with a gradient where torch wants one."""
    N, L = emissions.shape
    scores = {}
    for labels in itertools.product(range(L), repeat=N):
        score = start[labels[0]] + end[labels[-1]] + sum(emissions[j, y] for j, y in enumerate(labels))
        for before, after in itertools.pairwise(labels):
            score = score + transitions[before, after]
        scores[labels] = score
    return scores


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(1, 5), min_size=1, max_size=3), st.booleans())
def test_loss_and_gradients_equal_enumeration(seed: int, lengths: list[int], legal: bool) -> None:
    emissions, transitions, start, end, labels = draw(seed, lengths, legal=legal)
    leaves = [t.clone().requires_grad_() for t in (emissions, transitions, start, end)]
    loss = chain_loss(
        leaves[0], labels, lengths=torch.tensor(lengths), transitions=leaves[1], start=leaves[2], end=leaves[3]
    )
    (3.0 * loss).backward()

    own = [t.clone().requires_grad_() for t in (emissions, transitions, start, end)]
    expected = torch.zeros((), dtype=torch.float64)
    for row, length in enumerate(lengths):
        scores = enumerated(own[0][row, :length], *own[1:])
        finite = torch.stack([score for score in scores.values() if torch.isfinite(score)])
        truth = scores[tuple(labels[row, :length].tolist())]
        expected = expected + torch.logsumexp(finite, dim=0) - truth
    (3.0 * expected).backward()
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), abs=1e-9)
    for ours, theirs in zip(leaves, own, strict=True):
        assert ours.grad is not None
        expected_grad = torch.zeros_like(theirs) if theirs.grad is None else theirs.grad  # no move in one-token texts
        torch.testing.assert_close(ours.grad, expected_grad, atol=1e-9, rtol=1e-9)


def test_no_probability_is_lost_to_far_apart_scores() -> None:
    # A finite "minus infinity" of -10,000 would show here: the second label is 20,000 behind.
    emissions = torch.tensor([[[0.0, -20_000.0], [0.0, -20_000.0]]], dtype=torch.float64)
    zero = torch.zeros(2, 2, dtype=torch.float64)
    loss = chain_loss(
        emissions,
        torch.ones(1, 2, dtype=torch.long),
        lengths=torch.tensor([2]),
        transitions=zero,
        start=zero[0],
        end=zero[0],
    )
    assert float(loss) == pytest.approx(40_000.0)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_best_labels_equal_enumeration(seed: int, lengths: list[int]) -> None:
    emissions, transitions, start, end, _ = draw(seed, lengths, legal=True)
    found = best_labels(emissions, torch.tensor(lengths), transitions=transitions, start=start, end=end)
    for row, length in enumerate(lengths):
        scores = enumerated(emissions[row, :length], transitions, start, end)
        assert tuple(found[row]) == max(scores, key=lambda labels: float(scores[labels]))
