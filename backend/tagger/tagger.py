"""Text to potentials: the interface that every tagger has, and what it returns. Free of torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from backend.tagger.tokens import Token
from conformal.labels import LabelSpace
from conformal.trellis.potentials import Potentials
from conformal.units import cut_units, unit_bounds


@dataclass(frozen=True)
class Tagged:
    """A text as the chain sees it: tokens with offsets, potentials over them, the language.

    `seen` says that the model was trained on this very text (METHODS 5.4), `whole` that its sentences are not units
    of their own (METHODS 10.4).
    """

    text: str
    tokens: tuple[Token, ...]
    potentials: Potentials
    language: str
    seen: bool = False
    whole: bool = False

    @property
    def units(self) -> tuple[tuple[int, int], ...]:
        """The token ranges that sets are made for: its sentences, or all of it."""
        return unit_bounds(len(self.tokens), () if self.whole else self.boundaries)

    def unit_chains(self) -> tuple[Potentials, ...]:
        """Return the chain of each unit."""
        return (self.potentials,) if self.whole else cut_units(self.potentials)

    def char_bounds(self) -> list[tuple[int, int]]:
        """Return where each unit begins and ends in characters: together they are the whole text."""
        starts = [0, *(self.tokens[start].start for start, _ in self.units[1:]), len(self.text)]
        return list(pairwise(starts))

    @property
    def boundaries(self) -> tuple[int, ...]:
        """The tokens that begin a further sentence."""
        return self.potentials.boundaries


class Tagger(Protocol):
    """Anything that turns texts into potentials over one label space. Safe to share between threads."""

    @property
    def name(self) -> str:
        """Name of the model."""

    @property
    def hash(self) -> str:
        """Hash of everything that decides its potentials, in hexadecimal digits."""

    @property
    def base_hash(self) -> str:
        """Hash of the model itself, however its labels are folded: what it was trained on hangs on this one."""

    @property
    def ancestors(self) -> tuple[str, ...]:
        """Base hashes of the models that training began with, oldest first: it has learnt what they have."""

    @property
    def space(self) -> LabelSpace:
        """The labels its potentials are over."""

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages it names, sorted."""

    def potentials(self, texts: Sequence[str], *, languages: Sequence[str | None] | None = None) -> list[Tagged]:
        """Return one `Tagged` per text, in order; `languages` are what the tasks say, None where they do not."""
