"""A token classifier of `transformers` as emissions over a project's labels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from backend.tagger.hf.batches import Batch, at_first_pieces
from backend.tagger.hf.mapping import Labels
from conformal.labels import Scheme

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Probability that an entity begins inside a piece which the word before shares: such a word goes on as a rule.
_BEGINS_INSIDE = 0.01


class Classifier:
    """Log-probabilities of labels at the first piece of each word.

    The checkpoint's own columns go through a softmax (at the fitted temperature) and are added up by label. A word
    that shares its piece with the word before continues what that one began. A word that the tokenizer drops has no
    piece: all labels are alike there.
    """

    def __init__(
        self, model: PreTrainedModel, labels: Labels, *, temperature: float = 1.0, device: str = "cpu"
    ) -> None:
        self.model = model
        self._labels = labels
        self._temperature = temperature
        self._device = device

    def logits(self, batch: Batch) -> Tensor:
        """Return the checkpoint's own scores at the words' first pieces, on the CPU: (B, N, columns)."""
        logits = self.model(input_ids=batch.ids.to(self._device), attention_mask=batch.mask.to(self._device)).logits
        return at_first_pieces(logits, batch.firsts.to(self._device)).cpu().double()

    def __call__(self, batch: Batch) -> Tensor:
        """Return emissions (B, N, L) in float64."""
        return emissions_of(self.logits(batch), batch.firsts, self._labels, temperature=self._temperature)


def emissions_of(logits: Tensor, firsts: Tensor, labels: Labels, *, temperature: float | Tensor = 1.0) -> Tensor:
    """Turn scores of columns (B, N, columns) into emissions (B, N, L); differentiable, also in the temperature."""
    own = (logits / temperature).log_softmax(dim=2)
    parts = []
    for group in labels.groups:
        if group:
            parts.append(own[..., list(group)].logsumexp(dim=2) if len(group) > 1 else own[..., group[0]])
        else:
            parts.append(torch.full_like(own[..., 0], -torch.inf))
    emissions = torch.stack(parts, dim=2)  # (B, N, L)
    if labels.scheme is not Scheme.IO:
        shared = torch.zeros_like(firsts, dtype=torch.bool)
        shared[:, 1:] = (firsts[:, 1:] == firsts[:, :-1]) & (firsts[:, 1:] >= 0)
        if shared.any():
            emissions = torch.where(shared[..., None], _continued(emissions), emissions)
    nothing = torch.full_like(emissions, -math.log(emissions.shape[2]))
    return torch.where((firsts >= 0)[..., None], emissions, nothing)


def _continued(emissions: Tensor) -> Tensor:
    """Give what B-x and I-x have together to I-x, but for a hundredth."""
    continued = emissions.clone()
    both = torch.logaddexp(emissions[..., 1::2], emissions[..., 2::2])
    continued[..., 1::2] = both + math.log(_BEGINS_INSIDE)
    continued[..., 2::2] = both + math.log1p(-_BEGINS_INSIDE)
    return continued
