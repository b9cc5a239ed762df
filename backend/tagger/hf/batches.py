"""Windows of similar length, together: padding costs as much as words do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from backend.tagger.hf.subwords import Subworder
from backend.tagger.hf.windows import Piece


class Batch(NamedTuple):
    """Padded windows: piece ids, which of them are real, first pieces of words (-1: none, or padding), word counts."""

    ids: Tensor  # (B, S)
    mask: Tensor  # (B, S)
    firsts: Tensor  # (B, N)
    lengths: Tensor  # (B,)


class Emitter(Protocol):
    """A network that scores the words of a batch."""

    def __call__(self, batch: Batch) -> Tensor:
        """Return emissions (B, N, L); rows of padding and of words without a piece may hold anything finite."""


def group_pieces(pieces: Sequence[Piece], *, rows: int, budget: int) -> Iterator[list[Piece]]:
    """Yield groups of similar length: at most `rows` windows and about `budget` pieces, padding included."""
    group: list[Piece] = []
    for piece in sorted(pieces, key=lambda p: -len(p.ids)):
        if group and (len(group) == rows or (len(group) + 1) * len(group[0].ids) > budget):
            yield group
            group = []
        group.append(piece)
    if group:
        yield group


def collate(group: Sequence[Piece], subworder: Subworder) -> Batch:
    """Frame each window with the special tokens and pad."""
    before, after = np.array(subworder.before, np.int64), np.array(subworder.after, np.int64)
    lengths = np.array([len(piece.firsts) for piece in group], np.int64)
    sizes = np.array([len(piece.ids) + len(before) + len(after) for piece in group])
    ids = np.full((len(group), int(sizes.max())), subworder.pad, np.int64)  # (B, S)
    firsts = np.full((len(group), int(lengths.max())), -1, np.int64)  # (B, N)
    for row, piece in enumerate(group):
        ids[row, : sizes[row]] = np.concatenate([before, piece.ids, after])
        firsts[row, : lengths[row]] = np.where(piece.firsts >= 0, piece.firsts + len(before), -1)
    mask = np.arange(ids.shape[1])[None, :] < sizes[:, None]  # (B, S)
    return Batch(*(torch.from_numpy(array) for array in (ids, mask.astype(np.int64), firsts, lengths)))


def at_first_pieces(states: Tensor, firsts: Tensor) -> Tensor:
    """Return the rows of `states` (B, S, D) at the words' first pieces: (B, N, D), zeros for words without one."""
    places = firsts.clamp_min(0)[..., None].expand(-1, -1, states.shape[2])
    return states.gather(1, places) * (firsts >= 0)[..., None]
