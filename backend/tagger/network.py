"""The network: hashed word features, a two-layer BiLSTM, emissions, and the scores of the chain."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from backend.tagger.features import FeatureConfig, WordFeatures
from backend.tagger.model_info import NetworkConfig
from conformal.labels import LabelSpace


@dataclass(frozen=True)
class WordBatch:
    """The features of the U distinct words of a batch, as tensors."""

    words: Tensor  # (U, 2)
    prefixes: Tensor  # (U, 4)
    suffixes: Tensor  # (U, 4)
    shapes: Tensor  # (U, 1)
    ngrams: Tensor  # (sum of counts,)
    offsets: Tensor  # (U + 1,)

    @classmethod
    def of(cls, features: WordFeatures) -> WordBatch:
        """Wrap hashed features without copying."""
        return cls(*(torch.from_numpy(array) for array in features))


class Network(nn.Module):
    """Emissions of tokens; word vectors are computed once per distinct word of a batch."""

    def __init__(
        self,
        features: FeatureConfig,
        config: NetworkConfig,
        space: LabelSpace,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.config = config

        def table(rows: int, width: int, mode: str) -> nn.EmbeddingBag:
            return nn.EmbeddingBag(
                rows,
                width,
                mode=mode,
                sparse=True,
                include_last_offset=mode == "mean",
                _weight=torch.empty(rows, width),
            )

        self.words = table(features.word_rows, config.word_width, "sum")
        self.prefixes = table(features.prefix_rows, config.affix_width, "sum")
        self.suffixes = table(features.suffix_rows, config.affix_width, "sum")
        self.shapes = table(features.shape_rows, config.shape_width, "sum")
        self.ngrams = table(features.ngram_rows, config.ngram_width, "mean")
        joined = config.word_width + 2 * config.affix_width + config.shape_width + config.ngram_width
        self.norm = nn.LayerNorm(joined)
        self.mix = nn.Linear(joined, config.mixed_width)
        widths = [config.mixed_width, *[2 * config.hidden] * (config.layers - 1)]
        # One LSTM a direction: reversed by index, padded texts stay on torch's fused path, which packing leaves.
        self.rightward = nn.ModuleList(nn.LSTM(width, config.hidden, batch_first=True) for width in widths)
        self.leftward = nn.ModuleList(nn.LSTM(width, config.hidden, batch_first=True) for width in widths)
        self.emit = nn.Linear(config.mixed_width + 2 * config.hidden, len(space))
        self.transitions = nn.Parameter(torch.zeros(len(space), len(space)))
        self.start = nn.Parameter(torch.zeros(len(space)))
        self.end = nn.Parameter(torch.zeros(len(space)))
        self.register_buffer("allowed", torch.from_numpy(space.allowed.copy()), persistent=False)
        self.register_buffer("allowed_start", torch.from_numpy(space.allowed_start.copy()), persistent=False)

        if generator is not None:
            self._initialise(generator)

    def _initialise(self, generator: torch.Generator) -> None:
        """Draw all weights from `generator`; torch's own initialisation would read the global one."""
        with torch.no_grad():
            for table in self.tables:
                table.weight.uniform_(-0.1, 0.1, generator=generator)
            for layer in (self.mix, self.emit):
                nn.init.xavier_uniform_(layer.weight, generator=generator)
                layer.bias.zero_()
            for lstm in (*self.rightward, *self.leftward):
                start_lstm(lstm, generator)

    @property
    def tables(self) -> tuple[nn.EmbeddingBag, ...]:
        """The hashed tables, whose gradients are sparse."""
        return (self.words, self.prefixes, self.suffixes, self.shapes, self.ngrams)

    def word_vectors(
        self,
        batch: WordBatch,
        *,
        word_dropout: float = 0.0,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Vectors of the distinct words (U, mixed_width).

        In training each word loses its own row with probability `word_dropout`, so that affixes, n-grams and context
        learn to stand in for words never seen; `dropout` then drops single features of what is left.
        """
        word = self.words(batch.words)  # (U, word_width)
        if word_dropout:
            kept = torch.rand(word.shape[0], 1, generator=generator) >= word_dropout
            word = word * kept
        parts = [
            word,
            self.prefixes(batch.prefixes),
            self.suffixes(batch.suffixes),
            self.shapes(batch.shapes),
            self.ngrams(batch.ngrams, batch.offsets),
        ]
        joined = self.norm(torch.cat(parts, dim=1))  # (U, joined)
        if dropout:
            joined = joined * (torch.rand(joined.shape, generator=generator) >= dropout) / (1.0 - dropout)
        return nn.functional.gelu(self.mix(joined))

    def emissions(
        self,
        vectors: Tensor,
        places: Tensor,
        lengths: Tensor,
        *,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Emissions (B, N, L) of texts whose tokens are rows `places` (B, N) of `vectors`; `lengths` is (B,)."""
        N = places.shape[1]
        mirror = (lengths[:, None] - 1 - torch.arange(N)[None, :]).remainder(N)  # (B, N)
        x = drop(nn.functional.embedding(places, vectors), dropout, generator)  # (B, N, mixed_width)
        hidden = x
        for rightward, leftward in zip(self.rightward, self.leftward, strict=True):
            right, _ = rightward(hidden)  # (B, N, hidden)
            left, _ = leftward(mirrored(hidden, mirror))
            hidden = drop(torch.cat([right, mirrored(left, mirror)], dim=2), dropout, generator)  # (B, N, 2 hidden)
        emitted: Tensor = self.emit(torch.cat([x, hidden], dim=2))  # (B, N, L)
        return emitted

    def chain(self) -> tuple[Tensor, Tensor, Tensor]:
        """Transitions (L, L), start (L,), end (L,), with -inf on illegal IOB2 moves."""
        return masked_chain(self)


def start_lstm(lstm: nn.LSTM, generator: torch.Generator) -> None:
    """Draw the weights of an LSTM; forget gates begin open."""
    hidden = lstm.hidden_size
    with torch.no_grad():
        for name, weight in lstm.named_parameters():
            if name.startswith("bias"):
                weight.zero_()
                if name.startswith("bias_ih"):
                    weight[hidden : 2 * hidden] = 1.0
            else:
                for gate in range(4):
                    nn.init.xavier_uniform_(weight[gate * hidden : (gate + 1) * hidden], generator=generator)


def masked_chain(network: nn.Module) -> tuple[Tensor, Tensor, Tensor]:
    """Return a network's transitions (L, L), start (L,) and end (L,), with -inf on illegal IOB2 moves."""
    allowed, allowed_start = network.get_buffer("allowed"), network.get_buffer("allowed_start")
    return (
        network.get_parameter("transitions").masked_fill(~allowed, -torch.inf),
        network.get_parameter("start").masked_fill(~allowed_start, -torch.inf),
        network.get_parameter("end"),
    )


def mirrored(x: Tensor, mirror: Tensor) -> Tensor:
    """Reverse each text within its own length; padding stays behind. (B, N, D)."""
    return x.gather(1, mirror[..., None].expand(-1, -1, x.shape[2]))


def drop(x: Tensor, share: float, generator: torch.Generator | None) -> Tensor:
    """Drop whole features of a text, the same for all its tokens. (B, N, D)."""
    if not share:
        return x
    mask = torch.rand(x.shape[0], 1, x.shape[2], generator=generator) >= share
    return x * mask / (1.0 - share)
