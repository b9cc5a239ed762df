"""A text as the chain sees it: what every tagger returns."""

from __future__ import annotations

from dataclasses import dataclass

from backend.tagger.tokens import Token
from conformal.trellis.potentials import Potentials


@dataclass(frozen=True)
class Tagged:
    """A text as the chain sees it: tokens with offsets, potentials over them, the language.

    `seen` says that the model was trained on this very text (METHODS 5.4).
    """

    text: str
    tokens: tuple[Token, ...]
    potentials: Potentials
    language: str
    seen: bool = False

    @property
    def boundaries(self) -> tuple[int, ...]:
        """The tokens that begin a further sentence."""
        return self.potentials.boundaries
