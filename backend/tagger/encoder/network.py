"""The network: an encoder of `transformers`, a BiLSTM over the first pieces of words, emissions, the chain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from backend.tagger.errors import InvalidModel
from backend.tagger.hf.batches import Batch, at_first_pieces
from backend.tagger.network import drop, masked_chain, mirrored, start_lstm
from conformal.labels import LabelSpace

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class HeadConfig:
    """Widths of what stands on the encoder, and whether the encoder learns; part of a saved model."""

    hidden: int = 192
    layers: int = 1
    frozen: bool = False

    def __post_init__(self) -> None:
        for name, most in (("hidden", 4096), ("layers", 8)):
            value = getattr(self, name)
            if not isinstance(value, int) or not 1 <= value <= most:
                raise InvalidModel(f"expected {name} to be a whole number in 1..{most}, got {value!r}")


class EncoderNetwork(nn.Module):
    """Emissions of words: BERT-BiLSTM-CRF, with the encoder's vectors also passed by the BiLSTM into the emissions."""

    def __init__(
        self,
        encoder: PreTrainedModel,
        config: HeadConfig,
        space: LabelSpace,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.encoder = encoder
        width = encoder_width(encoder.config)
        widths = [width, *[2 * config.hidden] * (config.layers - 1)]
        # One LSTM a direction, for the reason given in `backend.tagger.network`.
        self.rightward = nn.ModuleList(nn.LSTM(size, config.hidden, batch_first=True) for size in widths)
        self.leftward = nn.ModuleList(nn.LSTM(size, config.hidden, batch_first=True) for size in widths)
        self.emit = nn.Linear(width + 2 * config.hidden, len(space))
        self.transitions = nn.Parameter(torch.zeros(len(space), len(space)))
        self.start = nn.Parameter(torch.zeros(len(space)))
        self.end = nn.Parameter(torch.zeros(len(space)))
        self.register_buffer("allowed", torch.from_numpy(space.allowed.copy()), persistent=False)
        self.register_buffer("allowed_start", torch.from_numpy(space.allowed_start.copy()), persistent=False)
        if config.frozen:
            self.encoder.requires_grad_(False)
        if generator is not None:
            with torch.no_grad():
                for lstm in (*self.rightward, *self.leftward):
                    start_lstm(lstm, generator)
                nn.init.xavier_uniform_(self.emit.weight, generator=generator)
                self.emit.bias.zero_()

    def states(self, batch: Batch) -> Tensor:
        """Return the encoder's vectors at the words' first pieces: (B, N, D), zeros for words without one.

        The encoder runs wherever it lies; what stands on it is small and stays on the CPU.
        """
        device = self.encoder.device
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.config.frozen):
            output = self.encoder(input_ids=batch.ids.to(device), attention_mask=batch.mask.to(device))
        return at_first_pieces(output.last_hidden_state, batch.firsts.to(device)).cpu()

    def emissions(
        self, states: Tensor, lengths: Tensor, *, dropout: float = 0.0, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return emissions (B, N, L) of words whose vectors are `states` (B, N, D); `lengths` is (B,)."""
        N = states.shape[1]
        mirror = (lengths[:, None] - 1 - torch.arange(N, device=states.device)[None, :]).remainder(N)  # (B, N)
        x = drop(states, dropout, generator)
        hidden = x
        for rightward, leftward in zip(self.rightward, self.leftward, strict=True):
            right, _ = rightward(hidden)  # (B, N, hidden)
            left, _ = leftward(mirrored(hidden, mirror))
            hidden = drop(torch.cat([right, mirrored(left, mirror)], dim=2), dropout, generator)  # (B, N, 2 hidden)
        emitted: Tensor = self.emit(torch.cat([x, hidden], dim=2))  # (B, N, L)
        return emitted

    def forward(self, batch: Batch) -> Tensor:
        """Return emissions (B, N, L)."""
        return self.emissions(self.states(batch), batch.lengths)

    def chain(self) -> tuple[Tensor, Tensor, Tensor]:
        """Transitions (L, L), start (L,), end (L,), with -inf on illegal IOB2 moves."""
        return masked_chain(self)

    @property
    def head(self) -> list[nn.Parameter]:
        """Everything but the encoder."""
        return [weight for name, weight in self.named_parameters() if not name.startswith("encoder.")]


def encoder_width(config: Any) -> int:  # noqa: ANN401 - each architecture has a configuration class of its own
    """Return the width of an encoder's vectors."""
    width = getattr(config, "hidden_size", None)
    if not isinstance(width, int):
        raise InvalidModel(f"expected an encoder whose configuration has a hidden_size, got {config.model_type}")
    return width
