"""The loss of a linear-chain CRF: minus the log-probability of the true labeling, batched, with exact gradients.

Illegal moves are exact zeros of probability (a true `-inf` of score), so nothing is lost to a large negative number.
Gradients are written out (marginals minus truth) instead of traced through logarithms, which has no `0 * inf` and
costs two short passes over the tokens in float64.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class ChainLoss(torch.autograd.Function):
    """Sum over the batch of `Z - s(y)` (METHODS 1), differentiable in emissions, transitions, start and end."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - the type torch documents for this argument
        emissions: Tensor,
        transitions: Tensor,
        start: Tensor,
        end: Tensor,
        labels: Tensor,
        lengths: Tensor,
    ) -> Tensor:
        """Return the loss, a scalar.

        Emissions (B, N, L), transitions (L, L), start (L,), end (L,), labels (B, N) and lengths (B,) of at least 1.
        `-inf` is allowed in transitions and start; the true labelings must be legal. Labels beyond a text's length
        are ignored.
        """
        B, N, L = emissions.shape
        e = emissions.detach().double()
        peak = e.max(dim=2).values  # (B, N)
        w = (e - peak[..., None]).exp()  # (B, N, L)
        moves = transitions.detach().double().exp()  # (L, L), zero where illegal
        first = start.detach().double().exp()  # (L,)
        last = end.detach().double().exp()  # (L,)
        inside = torch.arange(N)[None, :] < lengths[:, None]  # (B, N)
        is_last = torch.arange(N)[None, :] == (lengths - 1)[:, None]  # (B, N)

        alphas = torch.empty(B, N, L, dtype=torch.float64)
        scales = torch.ones(B, N, dtype=torch.float64)
        alpha = first * w[:, 0]  # (B, L)
        for j in range(N):
            if j:
                alpha = (alpha @ moves) * w[:, j]
            total = alpha.sum(dim=1)  # (B,)
            alpha = alpha / total[:, None]
            alphas[:, j] = alpha
            scales[:, j] = total
        final = alphas[torch.arange(B), lengths - 1] @ last  # (B,)
        partition = ((scales.log() + peak) * inside).sum(dim=1) + final.log()  # (B,)

        beta = torch.zeros(B, L, dtype=torch.float64)
        betas = torch.empty(B, N, L, dtype=torch.float64)  # scaled so that alphas * betas is the marginal
        for j in range(N - 1, -1, -1):
            if j < N - 1:
                beta = ((w[:, j + 1] * beta) @ moves.T) / scales[:, j + 1, None]
            beta = torch.where(is_last[:, j, None], last / final[:, None], beta)
            betas[:, j] = beta
        node = alphas * betas * inside[..., None]  # (B, N, L)
        step = (w[:, 1:] * betas[:, 1:] / scales[:, 1:, None]) * inside[:, 1:, None]  # (B, N-1, L)
        pair = moves * torch.einsum("bni,bnj->ij", alphas[:, :-1], step)  # (L, L)

        y = labels.clone()
        y[~inside] = 0
        truth = torch.nn.functional.one_hot(y, L).double() * inside[..., None]  # (B, N, L)
        true_pair = torch.einsum("bni,bnj->ij", truth[:, :-1], truth[:, 1:])  # (L, L)
        true_first = truth[:, 0].sum(dim=0)  # (L,)
        ends = y[torch.arange(B), lengths - 1]  # (B,)
        true_last = torch.bincount(ends, minlength=L).double()  # (L,)

        def scored(counts: Tensor, scores: Tensor) -> Tensor:
            # 0 * -inf is not zero in floats: only moves that occur are scored.
            return (counts * torch.where(counts > 0, scores.detach().double(), 0.0)).sum()

        score = e.gather(2, y[..., None]).squeeze(2).mul(inside).sum()
        score = score + scored(true_pair, transitions) + scored(true_first, start) + scored(true_last, end)
        last_marginal = alphas[torch.arange(B), lengths - 1] * last / final[:, None]  # (B, L)
        ctx.save_for_backward(
            (node - truth).to(emissions.dtype),
            (pair - true_pair).to(transitions.dtype),
            (node[:, 0].sum(dim=0) - true_first).to(start.dtype),
            (last_marginal.sum(dim=0) - true_last).to(end.dtype),
        )
        return partition.sum() - score

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401 - as above
        """Return the saved gradients times the outer one."""
        scale = outer[0]
        emissions, transitions, start, end = ctx.saved_tensors
        factor = scale.to(emissions.dtype)
        return emissions * factor, transitions * factor, start * factor, end * factor, None, None


def chain_loss(
    emissions: Tensor, labels: Tensor, *, lengths: Tensor, transitions: Tensor, start: Tensor, end: Tensor
) -> Tensor:
    """Sum over the batch of minus the log-probability of `labels`; shapes as in `ChainLoss.forward`.

    >>> zero = torch.zeros(2, 2)
    >>> loss = chain_loss(torch.zeros(1, 3, 2), torch.zeros(1, 3, dtype=torch.long), lengths=torch.tensor([3]),
    ...                   transitions=zero, start=zero[0], end=zero[0])
    >>> round(float(loss), 6)  # eight labelings, all alike: log 8
    2.079442
    """
    loss: Tensor = ChainLoss.apply(emissions, transitions, start, end, labels, lengths)  # type: ignore[no-untyped-call]
    return loss
