"""A ranked list of labelings, packed: enough to cut a set at another threshold without a forward pass.

Labelings of one text share most of their spans, so each distinct span is written once and a labeling is a list of
numbers. Probabilities keep all 64 bits, because a set is decided by comparing them with a threshold.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from backend.errors import StoreConflict
from backend.store.types import TextSpan

_FORMAT = 1
_HEAD = struct.Struct("<BBIIIII")

FLAG = 0.1  # wrong spans that a flag stands for, beside those that the model itself expects
NOVELTY = 0.5  # the same for a text that is stranger than all that were labelled
FIRST = 0.01  # scores below it belong to empty and open sets


@dataclass(frozen=True)
class Candidate:
    """A span that may be an entity, with P_ent of every class in the order of `RankedList.classes` (METHODS 6.3)."""

    start: int
    end: int
    probabilities: tuple[float, ...]


@dataclass(frozen=True)
class RankedList:
    """The best labelings of a text, best first, in characters.

    `exhausted` says that no further labeling exists; otherwise sets that reach beyond the last one need the model.
    """

    classes: tuple[str, ...]
    log_probabilities: tuple[float, ...]
    labelings: tuple[tuple[TextSpan, ...], ...]
    exhausted: bool
    candidates: tuple[Candidate, ...] = ()


def probability_of(log_probability: float) -> float:
    """Return a probability within 0..1, whatever rounding did to its logarithm.

    >>> probability_of(0.0), probability_of(1e-17), probability_of(float("-inf"))
    (1.0, 1.0, 0.0)
    """
    return min(1.0, math.exp(min(0.0, log_probability)))


def review_value(ranked: RankedList, *, flags: int = 0, novelty: float = 0.0) -> float:
    """Return what a look at a task is worth: `-log P` of its best labeling plus the spans expected to be wrong in it.

    A span of the best labeling is wrong with 1 - P_ent of its class, a candidate span that it leaves out with the
    summed P_ent of the classes (exact marginals). That is the model's word; `flags` (flagged spans) and `novelty` (1 -
    conformal p-value of the best labeling: how strange the text is beside those of its stratum) are that of the labels
    so far, and count as `FLAG` and `NOVELTY` wrong spans. The highest is looked at first: of the orders that were
    compared it finds most corrections early (docs/decisions/0014-review-queue.md). 0 for an empty list.

    >>> span = TextSpan(0, 3, "PER")
    >>> found = (Candidate(0, 3, (0.5,)), Candidate(5, 9, (0.25,)))
    >>> review_value(RankedList(("PER",), (0.0,), ((span,),), exhausted=False, candidates=found))
    0.75
    """
    if not ranked.labelings:
        return 0.0
    best = {(span.start, span.end): ranked.classes.index(span.label) for span in ranked.labelings[0]}
    wrong = FLAG * flags + NOVELTY * novelty
    for each in ranked.candidates:
        at = best.get((each.start, each.end))
        wrong += sum(each.probabilities) if at is None else 1.0 - each.probabilities[at]
    return wrong - min(0.0, ranked.log_probabilities[0])


def goes_first(*, is_open: bool, set_size: int | None) -> bool:
    """Whether a task is looked at before all others: its set is empty or open, so thresholds say nothing about it."""
    return is_open or set_size == 0


def score_of(value: float, *, first: bool) -> float:
    """Return the score that tasks are ordered by, the lowest looked at first: within 0..1, falling in `value`.

    One definition for the predictions that Label Studio gets, for the review queue, and for the scores that stand for
    blind tasks, so that all three are in one order. Tasks that go first get `FIRST` at most, all others at least that.
    1 / (1 + value) tells values of any size apart; exp(-value) would be 0 for every long text.

    >>> score_of(0.0, first=False), score_of(0.0, first=True), score_of(float("inf"), first=False)
    (1.0, 0.01, 0.01)
    >>> score_of(60.0, first=False) > score_of(61.0, first=False) > score_of(0.1, first=True) > 0
    True
    """
    certainty = 1.0 / (1.0 + max(0.0, value))
    return FIRST * certainty if first else FIRST + (1.0 - FIRST) * certainty


def value_of(score: float) -> float:
    """Return the value that `score_of` made this score of.

    >>> round(value_of(score_of(2.5, first=True)), 9), round(value_of(score_of(0.3, first=False)), 9)
    (2.5, 0.3)
    """
    certainty = score / FIRST if score <= FIRST else (score - FIRST) / (1.0 - FIRST)
    return 1.0 / certainty - 1.0 if certainty > 0.0 else math.inf


def pack_ranked(ranked: RankedList) -> bytes:
    """Return the list as bytes.

    >>> span = TextSpan(0, 3, "PER")
    >>> ranked = RankedList(("PER",), (-0.1, -2.4), ((span,), ()), exhausted=True)
    >>> unpack_ranked(pack_ranked(ranked)) == ranked
    True
    """
    if len(ranked.labelings) != len(ranked.log_probabilities):
        raise ValueError(
            f"expected one probability per labeling, got {len(ranked.log_probabilities)} for {len(ranked.labelings)}"
        )
    codes = {name: code for code, name in enumerate(ranked.classes)}
    numbers: dict[TextSpan, int] = {}
    for labeling in ranked.labelings:
        for span in labeling:
            numbers.setdefault(span, len(numbers))
    spans = [(span.start, span.end, codes[span.label]) for span in numbers]
    members = [numbers[span] for labeling in ranked.labelings for span in labeling]
    sizes = [len(labeling) for labeling in ranked.labelings]
    names = json.dumps(ranked.classes).encode()
    head = _HEAD.pack(
        _FORMAT, ranked.exhausted, len(names), len(sizes), len(spans), len(members), len(ranked.candidates)
    )
    body = b"".join(
        (
            names,
            np.array(ranked.log_probabilities, "<f8").tobytes(),
            np.array(sizes, "<u4").tobytes(),
            _ints(spans, 3),
            np.array(members, "<u4").tobytes(),
            _ints([(each.start, each.end) for each in ranked.candidates], 2),
            np.array([each.probabilities for each in ranked.candidates], "<f8").tobytes(),
        )
    )
    return head + zlib.compress(body, 6)


def unpack_ranked(packed: bytes) -> RankedList:
    """Return the list that `pack_ranked` packed.

    Raises:
        StoreConflict: when the bytes are of another format or damaged.
    """
    try:
        form, exhausted, names, count, spans, members, candidates = _HEAD.unpack_from(packed)
        body = zlib.decompress(packed[_HEAD.size :]) if form == _FORMAT else b""
    except (struct.error, zlib.error):
        form, body = -1, b""
    if form != _FORMAT:
        raise StoreConflict(f"expected a ranked list of format {_FORMAT}, got format {form}: it cannot be read")
    reader = _Reader(body)
    classes = tuple(json.loads(reader.take(names)))
    log_probabilities = reader.floats(count)
    sizes = reader.ints(count)
    table = reader.ints(spans * 3).reshape(-1, 3)
    distinct = [TextSpan(int(start), int(end), classes[code]) for start, end, code in table]
    numbers = reader.ints(members)
    ends = np.cumsum(sizes)
    labelings = tuple(
        tuple(distinct[number] for number in numbers[end - size : end]) for size, end in zip(sizes, ends, strict=True)
    )
    places = reader.ints(candidates * 2).reshape(-1, 2)
    probabilities = reader.floats(candidates * len(classes)).reshape(-1, max(1, len(classes)))
    found = tuple(
        Candidate(int(start), int(end), tuple(row.tolist()))
        for (start, end), row in zip(places, probabilities, strict=True)
    )
    return RankedList(classes, tuple(log_probabilities.tolist()), labelings, bool(exhausted), found)


def _ints(rows: Sequence[tuple[int, ...]], width: int) -> bytes:
    return np.array(rows, "<u4").reshape(-1, width).tobytes()


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        self.at += size
        return self.data[self.at - size : self.at]

    def ints(self, count: int) -> npt.NDArray[np.int64]:
        return np.frombuffer(self.take(4 * count), "<u4").astype(np.int64)

    def floats(self, count: int) -> npt.NDArray[np.float64]:
        return np.frombuffer(self.take(8 * count), "<f8").astype(np.float64)
