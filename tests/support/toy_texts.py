"""A toy language: drugs end in -ol or -ine, symptoms follow `caused`; a few templates and made-up words."""

from __future__ import annotations

import numpy as np

from backend.domain.records import TextSpan
from backend.tagger.readers import LabelledText


def toy_texts(count: int, *, seed: int) -> list[LabelledText]:
    rng = np.random.default_rng(seed)

    def syllables(n: int) -> str:
        return "".join(rng.choice(["ba", "ko", "li", "mu", "re", "ta", "vi", "zo"], size=n))

    texts = []
    for _ in range(count):
        drug = syllables(2) + str(rng.choice(["mol", "zine"]))
        symptom = " ".join(syllables(2) for _ in range(int(rng.integers(1, 3))))
        text, spans = "", []
        for word, label in (
            [("The patient took", ""), (drug, "Drug"), ("daily .", "")],
            [(drug.capitalize(), "Drug"), ("caused", ""), (symptom, "Symptom"), ("in two of them .", "")],
            [("Nothing was seen that day .", "")],
        )[int(rng.integers(3))]:
            start = len(text) + bool(text)
            text = f"{text} {word}" if text else word
            if label:
                spans.append(TextSpan(start, start + len(word), label))
        texts.append(LabelledText(text, tuple(spans)))
    return texts


def untidy_texts(count: int, *, seed: int) -> list[LabelledText]:
    """Return texts of the toy language that no model gets all right, each another one.

    A drug in five has no ending that tells, and what follows `caused` is no symptom one time in five.
    """
    rng = np.random.default_rng(seed)
    texts: dict[str, LabelledText] = {}

    def word(n: int) -> str:
        return "".join(rng.choice(["ba", "ko", "li", "mu", "re", "ta", "vi", "zo"], size=n))

    while len(texts) < count:
        drug = word(2) + str(rng.choice(["mol", "zine", "mol", "zine", "ta"]))
        follows = "" if rng.random() < 0.2 else "Symptom"
        text, spans = f"On {word(3)}", []
        for part, label in (
            [("the patient took", ""), (drug, "Drug"), ("daily .", "")],
            [(drug.capitalize(), "Drug"), ("caused", ""), (word(2), follows), ("in two of them .", "")],
        )[int(rng.integers(2))]:
            start = len(text) + 1
            text = f"{text} {part}"
            if label:
                spans.append(TextSpan(start, start + len(part), label))
        texts[text] = LabelledText(text, tuple(spans))
    return list(texts.values())
