"""What a model is trained on: labelled texts, those held out for early stopping, and where they come from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console

from backend.tagger.errors import InvalidTraining
from backend.tagger.language import identifiable
from backend.tagger.readers import LabelledText, read_labelled
from conformal.labels import LabelSpace, Scheme

_FEW = 10  # texts to stop by, where the share asked for would be fewer


@dataclass
class Material:
    """Texts to learn from, texts to stop by, and a summary of their sources; filled source by source."""

    train: list[LabelledText] = field(default_factory=list)
    held: list[LabelledText] = field(default_factory=list)
    files: list[dict[str, str]] = field(default_factory=list)
    repairs: int = 0
    dev_share: float = 0.0

    @property
    def space(self) -> LabelSpace:
        """The classes of the training texts, sorted.

        Raises InvalidTraining when there is none.
        """
        classes = sorted({span.label for text in self.train for span in text.spans})
        if not classes:
            raise InvalidTraining("expected entities in the training texts, got none; check the tag column")
        return LabelSpace(classes)

    @property
    def known_held(self) -> list[LabelledText]:
        """The texts held out whose classes the training texts have too.

        Raises InvalidTraining when there is none.
        """
        classes = set(self.space.classes)
        known = [text for text in self.held if all(span.label in classes for span in text.spans)]
        if not known:
            raise InvalidTraining("expected development texts, got none; raise --dev-share or give --dev")
        return known

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages that the training texts name, sorted; a model can tell apart only what can be identified."""
        return identifiable({text.language for text in self.train if text.language})

    def hold_out(self, texts: Sequence[LabelledText], *, share: float, rng: np.random.Generator) -> list[bool]:
        """Take in texts, a random share of them to stop by; return which ones those are.

        Of few texts that share may be none, and training would not know when to stop: a fifth of them then, ten at the
        most.
        """
        draws = rng.random(len(texts))
        least = min(_FEW, max(1, len(texts) // 5)) if share and len(texts) > 1 else 0
        smallest = set(np.argsort(draws)[:least].tolist())
        chosen = [bool(draw < share) or number in smallest for number, draw in enumerate(draws)]
        self.held += [text for text, kept in zip(texts, chosen, strict=True) if kept]
        self.train += [text for text, kept in zip(texts, chosen, strict=True) if not kept]
        return chosen


def gather(
    data: Sequence[Path],
    *,
    dev: Sequence[Path] = (),
    dev_share: float = 0.03,
    scheme: Scheme | None = None,
    seed: int = 1,
    console: Console,
) -> Material:
    """Read labelled files; without `dev`, a random share of each is held out."""
    material = Material(dev_share=0.0 if dev else dev_share)
    rng = np.random.default_rng([seed, 7])
    for path in data:
        reading = read_labelled(path, scheme=scheme)
        material.repairs += reading.repairs
        material.files.append({"name": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()})
        console.print(f"{path.name}: {reading.summary()}", highlight=False)
        if dev:
            material.train += reading.texts
        else:
            material.hold_out(reading.texts, share=dev_share, rng=rng)
    for path in dev:
        reading = read_labelled(path, scheme=scheme)
        console.print(f"{path.name} (development): {reading.summary()}", highlight=False)
        material.held += reading.texts
    return material
