"""What a reader returns: labelled texts, and what had to be mended or left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from backend.domain.records import TextSpan
from backend.tagger.errors import InvalidData


@dataclass(frozen=True)
class LabelledText:
    """A text with its entities in characters, and where it was read.

    `words` are the words of a tokenised file (the text is then these, joined with one space). `language` is what
    the file says, or None. `source` and `line` name file and line; `document` numbers the documents of a file that
    marks where they begin (0: it does not).
    """

    text: str
    spans: tuple[TextSpan, ...]
    language: str | None = None
    words: tuple[str, ...] | None = None
    source: str = ""
    line: int = 0
    document: int = 0


@dataclass(frozen=True)
class Reading:
    """The texts of a file in order.

    `repairs` counts illegal IOB2 moves that were mended, `skipped` what was left out, by reason.
    """

    texts: tuple[LabelledText, ...]
    repairs: int = 0
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def classes(self) -> tuple[str, ...]:
        """The entity classes in use, sorted."""
        return tuple(sorted({span.label for text in self.texts for span in text.spans}))

    def summary(self) -> str:
        """One line for people.

        >>> Reading((), repairs=2).summary()
        '0 texts, 0 entities, 2 illegal IOB2 moves repaired'
        """
        entities = sum(len(text.spans) for text in self.texts)
        parts = [
            f"{len(self.texts):,} texts",
            f"{entities:,} entities",
            f"{self.repairs:,} illegal IOB2 moves repaired",
        ]
        parts += [f"{count:,} skipped ({reason})" for reason, count in sorted(self.skipped.items())]
        return ", ".join(parts)


def from_words(
    words: Sequence[str],
    tags: Sequence[str],
    *,
    language: str | None = None,
    source: str = "",
    line: int = 0,
) -> LabelledText:
    """Join words with one space and express legal IOB2 tags as character spans.

    >>> from_words(["New", "York"], ["B-LOC", "I-LOC"]).spans
    (TextSpan(start=0, end=8, label='LOC'),)
    """
    if len(words) != len(tags):
        raise InvalidData(f"expected one tag a word, got {len(words)} words and {len(tags)} tags")
    spans: list[TextSpan] = []
    position = 0
    for word, tag in zip(words, tags, strict=True):
        end = position + len(word)
        if tag.startswith("B-"):
            spans.append(TextSpan(position, end, tag[2:]))
        elif tag.startswith("I-"):
            if not spans or spans[-1].label != tag[2:] or spans[-1].end != position - 1:
                raise InvalidData(f"expected legal IOB2 tags, got {tag} without a beginning; repair first")
            spans[-1] = spans[-1]._replace(end=end)
        position = end + 1
    return LabelledText(" ".join(words), tuple(spans), language, tuple(words), source, line)


def join_documents(texts: Sequence[LabelledText]) -> list[LabelledText]:
    """Join the sentences of each document with one space; a text of a file without documents is one by itself.

    >>> parts = [from_words(["Ja", "."], ["O", "O"]), from_words(["Rom"], ["B-LOC"])]
    >>> [joined.spans for joined in join_documents([replace(part, document=1) for part in parts])]
    [(TextSpan(start=5, end=8, label='LOC'),)]
    """
    joined: list[LabelledText] = []
    for (_, document), group in groupby(texts, key=lambda each: (each.source, each.document)):
        parts = list(group)
        if not document:
            joined += parts
            continue
        spans: list[TextSpan] = []
        at = 0
        for part in parts:
            spans += [TextSpan(span.start + at, span.end + at, span.label) for span in part.spans]
            at += len(part.text) + 1
        joined.append(replace(parts[0], text=" ".join(part.text for part in parts), spans=tuple(spans), words=None))
    return joined
