"""Labelled texts as flag rules see them: listed spans with their probabilities, errors and right spans, in columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from backend.domain.priority import doubt_of, review_value
from backend.domain.ranked import Candidate, RankedList, RankedText, RankedUnit
from backend.domain.records import TextSpan
from backend.prediction.make_starter import rows_of
from backend.prediction.scoring import ScoredText, score_labelled
from backend.tagger.readers import LabelledText
from backend.tagger.spans import to_char_spans
from backend.tagger.tagger import Tagger
from conformal.quantile import Bools, Floats
from conformal.risk import FLOOR, ErrorRows, place_numbers, span_doubts
from conformal.risk.intervals import greatest_touching
from conformal.rows import EntityRows
from conformal.subsequence import candidate_spans, listing_floor
from conformal.trellis import entity_marginals, kbest

Ints = npt.NDArray[np.int64]
_CHUNK = 64


@dataclass(frozen=True, eq=False)
class Spans:
    """Spans of many tasks. Positions go on from task to task, so that spans of two tasks never overlap."""

    task: Ints
    start: Ints
    end: Ints

    def __len__(self) -> int:
        return int(self.task.size)


@dataclass(frozen=True, eq=False)
class Lists:
    """What is known of T labelled tasks: every span listed, what is wrong in their best labelings and what is right.

    `probability` (S, W + 1) and `best` (S,), -1 where the best labeling has no such span, belong to `listed`; `false`
    to `errors`. `entities`, `predicted` (T,) are |Y| and |B|; `rows` are what class thresholds are calibrated with.
    `doubt`, `value` and `units` (T,) are what acceptance and the review queue know of a task (METHODS 12.1).
    """

    classes: tuple[str, ...]
    listed: Spans
    probability: Floats
    best: Ints
    errors: Spans
    false: Bools
    right: Spans
    entities: Ints
    predicted: Ints
    rows: EntityRows
    doubt: Floats
    value: Floats
    units: Ints

    def __len__(self) -> int:
        return int(self.entities.size)

    @cached_property
    def doubts(self) -> Floats:
        """The doubt of every listed span."""
        return span_doubts(self.probability, [None if w < 0 else w for w in self.best.tolist()])

    def levels(self, spans: Spans, values: Floats) -> Floats:
        """Return the greatest value of a listed span that shares a character with each of `spans`, 0 for none."""
        return greatest_touching(self.listed.start, self.listed.end, values=values, first=spans.start, last=spans.end)

    def error_rows(self, values: Floats) -> ErrorRows:
        """Return errors with the levels at which a rule sees them that flags listed spans by `values`."""
        levels = self.levels(self.errors, values)
        return ErrorRows(self.entities, self.predicted, None, self.errors.task, levels, self.false)

    def places(self, flagged: Bools) -> Ints:
        """Return how many places each task has when these of the listed spans are flagged: (T,)."""
        chosen = np.flatnonzero(flagged)
        numbers = place_numbers(self.listed.start[chosen], self.listed.end[chosen])
        _, first = np.unique(numbers, return_index=True)
        return np.bincount(self.listed.task[chosen[first]], minlength=len(self)).astype(np.int64)


@dataclass
class _Columns:
    """Spans as they are collected."""

    task: list[int] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)

    def add(self, task: int, spans: Sequence[tuple[int, int]], shift: int) -> None:
        self.task += [task] * len(spans)
        self.start += [start + shift for start, _ in spans]
        self.end += [end + shift for _, end in spans]

    def done(self) -> Spans:
        return Spans(*(np.array(each, np.int64) for each in (self.task, self.start, self.end)))


def list_texts(
    tagger: Tagger, texts: Sequence[LabelledText], *, progress: Callable[[int], object] | None = None
) -> Lists:
    """Tag texts and compare their best labelings with their labels; texts without a word or seen in training are out.

    An entity that the model cannot express counts as it was drawn.
    """
    space = tagger.space
    listed, errors, right = _Columns(), _Columns(), _Columns()
    probability: list[Floats] = []
    best_class: list[int] = []
    false: list[bool] = []
    sizes: list[tuple[int, int]] = []
    known: list[tuple[float, float, int]] = []
    kept: list[ScoredText] = []
    shift = 0
    for done, item in enumerate(score_labelled(tagger, texts, chunk=_CHUNK), start=1):
        if progress is not None:
            progress(done)
        tagged = item.tagged
        if tagged.seen or not tagged.tokens:
            continue
        task = len(kept)
        said: set[TextSpan] = set()
        chains = list(tagged.unit_chains())
        marginals = entity_marginals(chains, space, floor=listing_floor(space, FLOOR))
        units: list[RankedUnit] = []
        for (first, last), top, entities in zip(tagged.units, kbest(chains, 1), marginals, strict=True):
            tokens = tagged.tokens[first:last]
            best = space.spans(top.labels[0])
            drawn = to_char_spans(best, tokens)
            said.update(drawn)
            found = candidate_spans(entities, space, p_min=FLOOR, extra=best)
            classes = {(span.start, span.end): space.classes.index(span.label) for span in best}
            places = [(tokens[a].start, tokens[b - 1].end) for a, b in found.keys]
            listed.add(task, places, shift)
            best_class += [classes.get(key, -1) for key in found.keys]
            probability.append(found.probabilities)
            candidates = (
                Candidate(*place, tuple(row[:-1]))
                for place, row in zip(places, found.probabilities.tolist(), strict=True)
            )
            log = (min(0.0, float(top.log_probabilities[0])),)
            ranked = RankedList(space.classes, log, (tuple(drawn),), exhausted=False, candidates=tuple(candidates))
            units.append(RankedUnit(first, last, "", ranked))
        true = set(to_char_spans(item.alignment.spans, tagged.tokens))
        true |= {lost.span for lost in item.alignment.inexpressible if lost.span.end > lost.span.start}
        missing, extra = sorted(true - said), sorted(said - true)
        errors.add(task, [(span.start, span.end) for span in missing + extra], shift)
        false += [False] * len(missing) + [True] * len(extra)
        right.add(task, [(span.start, span.end) for span in sorted(true & said)], shift)
        sizes.append((len(true), len(said)))
        whole = RankedText(tuple(units), floor=FLOOR)
        known.append((doubt_of(whole), review_value(whole), len(units)))
        kept.append(item)
        shift += max([len(tagged.text), *(span.end for span in true)])
    counts = np.array(sizes, np.int64).reshape(-1, 2)
    width = len(space.classes) + 1
    _, rows = rows_of(kept)
    return Lists(
        classes=space.classes,
        listed=listed.done(),
        probability=np.concatenate([np.zeros((0, width)), *probability]),
        best=np.array(best_class, np.int64),
        errors=errors.done(),
        false=np.array(false, np.bool_),
        right=right.done(),
        entities=counts[:, 0],
        predicted=counts[:, 1],
        rows=rows,
        doubt=np.array([each[0] for each in known]),
        value=np.array([each[1] for each in known]),
        units=np.array([each[2] for each in known], np.int64),
    )
