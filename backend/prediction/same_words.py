"""The words that people have labelled in a project: which label they have, and where else they stand.

A match is exact: the same characters, in the same case, from the border of a token to the border of a token. What
people label now this way and now that, or often leave alone, is nobody's word about the next place, and is not
suggested. Everything here is a pure function of its arguments, in time that is linear in the texts.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from backend.domain.precedence import PROCESS
from backend.domain.records import TextSpan
from backend.tagger.tokens import tokenize

MOST_WORDS = 2_000  # that an index knows: those of most tasks, the newest first among equals
MOST_TOKENS = 12  # in one of them
MOST_FOUND = 200  # places that are suggested in one text
FEWEST_CHARACTERS, MOST_CHARACTERS = 2, 200
_PAUSE = 10_000  # tokens of a long text between two pauses


class Words(NamedTuple):
    """What people make of some words: the label that they clearly give them, None where there is none.

    `tasks` are the newest two with that label; `labelled` of `met` tasks have it.
    """

    label: str | None
    tasks: tuple[str, ...] = ()
    labelled: int = 0
    met: int = 0


class SameWords(NamedTuple):
    """A place with words that were labelled elsewhere. `span` has the label as the label config calls it.

    `task` is one where they were, None: this one.
    """

    span: TextSpan
    task: str | None
    labelled: int
    met: int


@dataclass(frozen=True)
class WordIndex:
    """Words by their characters; `lengths` are how many tokens those have that begin with a token, longest first."""

    words: Mapping[str, Words] = field(default_factory=dict)
    lengths: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class LabelledWords:
    """A labelled text, cut into tokens once: where they start and end, and its spans in characters, without space.

    Spans that cut a token are in `spans` too: their places are not free.
    """

    task: str
    text: str
    starts: array[int]
    ends: array[int]
    spans: tuple[TextSpan, ...]

    def words(self) -> Iterator[tuple[str, str, int]]:
        """Yield the words of spans that can be found elsewhere: their characters, first token, number of tokens."""
        for start, end, _ in self.spans:
            first, last = bisect_left(self.starts, start), bisect_left(self.ends, end)
            if first >= len(self.starts) or last >= len(self.ends):
                continue
            if self.starts[first] != start or self.ends[last] != end:
                continue
            if last - first >= MOST_TOKENS or not FEWEST_CHARACTERS <= end - start <= MOST_CHARACTERS:
                continue
            surface = self.text[start:end]
            if any(map(str.isalnum, surface)):
                yield surface, self.text[start : self.ends[first]], last - first + 1


def read_words(task: str, text: str, spans: Iterable[TextSpan]) -> LabelledWords:
    """Cut a labelled text into tokens; spans that reach outside of it are left out.

    >>> list(read_words("7", "In New York", [TextSpan(2, 11, "LOC")]).words())
    [('New York', 'New', 2)]
    """
    tokens = tokenize(text)
    inside = (each for each in spans if 0 <= each.start < each.end <= len(text))
    return LabelledWords(
        task,
        text,
        array("l", (token.start for token in tokens)),
        array("l", (token.end for token in tokens)),
        tuple(sorted(each for each in (_trimmed(each, text) for each in inside) if each.start < each.end)),
    )


def index_words(texts: Sequence[LabelledWords]) -> WordIndex:
    """Return what people make of the words they have labelled in these texts, the newest text first.

    Every text has one vote for each thing that was done in it with the words: a label that they got, or none. A label
    is clear if it has three quarters of the votes. Words inside longer ones that were labelled are no vote.
    """
    named: Counter[str] = Counter()
    begins: dict[str, tuple[str, int]] = {}
    for text in texts:
        for surface, first, length in set(text.words()):
            named[surface] += 1
            begins[surface] = (first, length)
    # Counter.most_common keeps the order of first sight among equals: the newest.
    known = [surface for surface, _ in named.most_common(MOST_WORDS)]
    lengths = _lengths(begins[surface] for surface in known)
    votes: dict[str, Counter[str | None]] = {surface: Counter() for surface in known}
    tasks: dict[tuple[str, str], list[str]] = defaultdict(list)
    for text in texts:
        for surface, label in _outcomes(text, lengths, votes.keys()):
            votes[surface][label] += 1
            if label is not None and len(tasks[surface, label]) < 2:
                tasks[surface, label].append(text.task)
    return WordIndex({surface: _verdict(surface, votes[surface], tasks) for surface in known}, lengths)


def index_drawn(text: str, spans: Iterable[TextSpan]) -> WordIndex:
    """Return an index of the words that somebody has just labelled in a text; of one with two labels nothing is known.

    >>> index_drawn("Ann met Bob, Bob left", [TextSpan(8, 11, "PER")]).words
    {'Bob': Words(label='PER', tasks=(), labelled=1, met=1)}
    """
    words: dict[str, Words] = {}
    begins: set[tuple[str, int]] = set()
    read = read_words("", text, spans)
    for each in read.spans:
        for surface, first, length in LabelledWords("", text, read.starts, read.ends, (each,)).words():
            same = surface not in words or words[surface].label == each.label
            words[surface] = Words(each.label, labelled=1, met=1) if same else Words(None)
            begins.add((first, length))
    return WordIndex(words, _lengths(begins))


def find_same(
    index: WordIndex, text: str, *, taken: Iterable[TextSpan], labels: Collection[str], task: str | None
) -> tuple[SameWords, ...]:
    """Return the free places of a text whose words are known, from left to right, the longest words first.

    Where longer words stand, shorter ones within them are not looked for, also if nothing is clear about the longer.

    Args:
        taken: spans whose places are not free.
        labels: those that the label config has; others are not suggested.
        task: the text's own, whose labels say nothing about it; None where that does not matter.
    """
    found: list[SameWords] = []
    if not index.words:
        return ()
    places = _Places(taken)
    tokens = tokenize(text)
    starts, ends = [token.start for token in tokens], [token.end for token in tokens]
    free_from = 0
    for i, length in _candidates(index.lengths, text, starts, ends):
        start, end = starts[i], ends[i + length - 1]
        if start < free_from:
            continue
        words = index.words.get(text[start:end])
        if words is None or not places.free(start, end):
            continue
        free_from = end
        other = next((each for each in words.tasks if each != task), None)
        if words.label is None or words.label not in labels or (task is not None and other is None):
            continue
        found.append(SameWords(TextSpan(start, end, words.label), other, words.labelled, words.met))
        if len(found) >= MOST_FOUND:
            break
    return tuple(found)


def _trimmed(span: TextSpan, text: str) -> TextSpan:
    surface = text[span.start : span.end]
    start = span.start + len(surface) - len(surface.lstrip())
    return TextSpan(start, start + len(surface.strip()), span.label)


def _lengths(begins: Iterable[tuple[str, int]]) -> dict[str, tuple[int, ...]]:
    by_first: dict[str, set[int]] = defaultdict(set)
    for first, length in begins:
        by_first[first].add(length)
    return {first: tuple(sorted(lengths, reverse=True)) for first, lengths in by_first.items()}


def _candidates(
    lengths: Mapping[str, tuple[int, ...]], text: str, starts: Sequence[int], ends: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yield (token, number of tokens) of the places that may be known words, the longest first at each token."""
    for i, start in enumerate(starts):
        if i and i % _PAUSE == 0:
            PROCESS.pause()
        for length in lengths.get(text[start : ends[i]], ()):
            if i + length <= len(starts):
                yield i, length


def _outcomes(
    text: LabelledWords, lengths: Mapping[str, tuple[int, ...]], known: Collection[str]
) -> set[tuple[str, str | None]]:
    """Return what was done with known words in a labelled text: the labels they got; None where they were left."""
    labels: dict[tuple[int, int], list[str]] = defaultdict(list)
    for start, end, label in text.spans:
        labels[start, end].append(label)
    places = _Places(text.spans)
    outcomes: set[tuple[str, str | None]] = set()
    for i, length in _candidates(lengths, text.text, text.starts, text.ends):
        start, end = text.starts[i], text.ends[i + length - 1]
        surface = text.text[start:end]
        if surface not in known:
            continue
        given = labels.get((start, end))
        if given is not None:
            outcomes.update((surface, label) for label in given)
        elif places.free(start, end):
            outcomes.add((surface, None))
    return outcomes


def _verdict(surface: str, votes: Counter[str | None], tasks: Mapping[tuple[str, str], Sequence[str]]) -> Words:
    (label, count), met = votes.most_common(1)[0], votes.total()
    if label is None or 4 * count < 3 * met:
        return Words(None)
    return Words(label, tuple(tasks[surface, label]), count, met)


class _Places:
    """Characters that are taken, as disjoint intervals."""

    def __init__(self, spans: Iterable[TextSpan]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end, _ in sorted(spans):
            if self._ends and start < self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._starts.append(start)
                self._ends.append(end)

    def free(self, start: int, end: int) -> bool:
        """Whether nothing of these characters is taken."""
        return bisect_right(self._ends, start) >= bisect_left(self._starts, end)
