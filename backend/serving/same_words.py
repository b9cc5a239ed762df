"""What people have labelled in a project, at hand to be suggested elsewhere: bounded, and a few seconds old at most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from backend.models.polling import Polled
from backend.prediction.same_words import LabelledWords, WordIndex, index_words, read_words
from backend.store import Store
from backend.store.projects import LOCAL, find_project
from backend.store.same_words import LabelledText, LabelMark, load_labelled, newest_labels

POLL_SECONDS = 5.0
MOST_PROJECTS = 32  # a megabyte or two each
MOST_LABELS = 1_000  # the newest of a project
MOST_TOKENS = 100_000  # in all their texts
LONGEST = 10_000  # tokens of one
MOST_CHARACTERS = 200_000  # of one: few tokens can be many characters


@dataclass(frozen=True)
class _Known:
    """The texts that were read, by label and revision, newest first, and the index of their words."""

    texts: Mapping[tuple[int, int], LabelledWords]
    index: WordIndex


_NOTHING = _Known({}, WordIndex())


class ProjectWords:
    """The words of projects. Safe to share between threads."""

    def __init__(self, reads: Store, *, poll: float = POLL_SECONDS) -> None:
        self._reads = reads
        self._known: Polled[str, _Known] = Polled(self._ask, every=poll, most=MOST_PROJECTS)

    def index(self, project: str) -> WordIndex:
        """Return the words of a project; none when the database has never answered, and for texts of no project."""
        known = None if project == LOCAL else self._known.get(project)
        return _NOTHING.index if known is None else known.index

    def _ask(self, project: str, before: _Known | None) -> _Known:
        held = before or _NOTHING
        with self._reads.read() as session:
            row = find_project(session, project)
            if row is None:
                return _NOTHING
            wanted = _within(newest_labels(session, row.id, limit=MOST_LABELS))
            if list(held.texts) == wanted:
                return held
            new = [key[0] for key in wanted if key not in held.texts]
            loaded = load_labelled(session, new)
        fresh = {each.id: _read(each) for each in loaded}
        texts = {key: text for key in wanted if (text := held.texts.get(key) or fresh.get(key[0])) is not None}
        return _Known(texts, index_words(list(texts.values())))


def _read(label: LabelledText) -> LabelledWords:
    if len(label.text) > MOST_CHARACTERS:
        return read_words(label.task, "", ())  # known to be there, so that it is not loaded again and again
    return read_words(label.task, label.text, label.spans)


def _within(marks: Sequence[LabelMark]) -> list[tuple[int, int]]:
    """Return (label, revision) of the newest that fit into the memory of a project."""
    kept: list[tuple[int, int]] = []
    total = 0
    for number, revision, size in marks:
        if size > LONGEST:
            continue
        total += size
        if total > MOST_TOKENS:
            break
        kept.append((number, revision))
    return kept
