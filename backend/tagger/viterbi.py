"""The best labeling of each text of a batch, for figures during training.

Prediction uses the exact k-best of `conformal`; this one runs on the tensors that training already has.
"""

from __future__ import annotations

import torch
from torch import Tensor


def best_labels(
    emissions: Tensor, lengths: Tensor, *, transitions: Tensor, start: Tensor, end: Tensor
) -> list[list[int]]:
    """Return the labeling with the highest chain score (METHODS 1) of each text.

    Emissions (B, N, L), lengths (B,) of at least 1, transitions (L, L), start and end (L,).

    >>> zero = torch.zeros(2, 2)
    >>> best_labels(torch.tensor([[[0.0, 1.0], [2.0, 1.0]]]), torch.tensor([2]),
    ...             transitions=zero, start=zero[0], end=zero[0])
    [[1, 0]]
    """
    B, N, _ = emissions.shape
    score = start + emissions[:, 0]  # (B, L)
    steps: list[Tensor] = []
    for j in range(1, N):
        reached, came_from = (score[:, :, None] + transitions).max(dim=1)  # (B, L)
        inside = (j < lengths)[:, None]
        score = torch.where(inside, reached + emissions[:, j], score)
        steps.append(came_from)
    label = (score + end).argmax(dim=1)  # (B,)
    path = torch.zeros(B, N, dtype=torch.long)
    for j in range(N - 1, -1, -1):
        path[:, j] = label
        if j:
            moved = (j < lengths).long()
            before = steps[j - 1].gather(1, label[:, None]).squeeze(1)
            label = torch.where(moved.bool(), before, label)
    return [row[:length] for row, length in zip(path.tolist(), lengths.tolist(), strict=True)]
