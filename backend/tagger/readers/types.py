"""What a reader returns: labelled texts, and what had to be mended or left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from backend.tagger.errors import InvalidData
from backend.tagger.spans import CharSpan


@dataclass(frozen=True)
class LabelledText:
    """A text with its entities in characters, and where it was read.

    `words` are the words of a tokenised file (the text is then these, joined with one space). `language` is what
    the file says, or None. `source` and `line` name file and line.
    """

    text: str
    spans: tuple[CharSpan, ...]
    language: str | None = None
    words: tuple[str, ...] | None = None
    source: str = ""
    line: int = 0


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
    (CharSpan(start=0, end=8, label='LOC'),)
    """
    if len(words) != len(tags):
        raise InvalidData(f"expected one tag a word, got {len(words)} words and {len(tags)} tags")
    spans: list[CharSpan] = []
    position = 0
    for word, tag in zip(words, tags, strict=True):
        end = position + len(word)
        if tag.startswith("B-"):
            spans.append(CharSpan(position, end, tag[2:]))
        elif tag.startswith("I-"):
            if not spans or spans[-1].label != tag[2:] or spans[-1].end != position - 1:
                raise InvalidData(f"expected legal IOB2 tags, got {tag} without a beginning; repair first")
            spans[-1] = spans[-1]._replace(end=end)
        position = end + 1
    return LabelledText(" ".join(words), tuple(spans), language, tuple(words), source, line)
