"""Subsequence sets: which labels a span could carry, with a threshold per class (METHODS 6.1 to 6.3).

Arrays over spans have one column per class of the label space and a last one for "O": not an entity exactly
here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from conformal.errors import InvalidArgument, InvalidScores
from conformal.labels import OUTSIDE, LabelSpace, Span
from conformal.quantile import Bools, Floats
from conformal.scores import PLAIN_SCORES, EntityMethod
from conformal.trellis import KBest

Ints = npt.NDArray[np.int64]

__all__ = [
    "Candidates",
    "EntityMethod",
    "Ints",
    "Marginals",
    "SpanScores",
    "TopMarginals",
    "candidate_ranks",
    "candidate_spans",
    "entity_ranks",
    "label_group",
    "label_members",
    "list_spans",
    "listing_floor",
    "score_spans",
    "span_labels",
    "with_outside",
]

# Probabilities may add up to a little more than one; the sum itself is not renormalised.
_ROUNDING = 1e-6


class Marginals(Protocol):
    """What is needed of entity marginals: `conformal.EntityMarginals`, or `TopMarginals`."""

    @property
    def starts(self) -> npt.NDArray[np.integer]:
        """First token of each listed span."""

    @property
    def ends(self) -> npt.NDArray[np.integer]:
        """Token after the last of each listed span."""

    @property
    def classes(self) -> npt.NDArray[np.integer]:
        """The class of each listed row, as its position in the label space."""

    @property
    def probabilities(self) -> Floats:
        """P_ent of each listed span and class."""

    def of_spans(self, starts: npt.ArrayLike, ends: npt.ArrayLike) -> Floats:
        """P_ent of any spans, for every class: (S, W)."""


@dataclass(frozen=True, eq=False)
class SpanScores:
    """The three scores of each label of each span, from its probabilities (S, V); see `score_spans`."""

    probability: Floats
    cumulative: Floats
    class_rank: Ints

    def scores(self, name: str) -> Floats:
        """Return nc1_ent (as -log P), nc2_ent or nc3_ent."""
        if name not in PLAIN_SCORES:
            raise InvalidArgument(f"expected an entity score among {tuple(PLAIN_SCORES)}, got {name!r}")
        return PLAIN_SCORES[name].of_spans(self)


def with_outside(probabilities: npt.ArrayLike) -> Floats:
    """Append the column O: `max(0, 1 - sum)`; probabilities (S, W) become (S, W + 1).

    >>> with_outside([[0.5, 0.25]]).tolist()
    [[0.5, 0.25, 0.25]]
    """
    given = np.atleast_2d(np.asarray(probabilities, dtype=np.float64))
    sums = given.sum(axis=1)
    if np.isnan(given).any() or np.any(given < 0) or np.any(sums > 1 + _ROUNDING):
        raise InvalidScores("expected probabilities of at least 0 that add up to at most 1 per span, got others")
    result = np.empty((given.shape[0], given.shape[1] + 1))
    result[:, :-1] = given
    np.maximum(0.0, 1.0 - sums, out=result[:, -1])
    return result


def score_spans(probabilities: npt.ArrayLike) -> SpanScores:
    """Score every label of every span against all labels of that span, O included (METHODS 6.1).

    probabilities (S, V) over W and O. nc1_ent = 1 - P (kept as -log P: the same sets); nc2_ent = the summed
    P of labels at least as likely; nc3_ent = how many those are. Ties count together.

    >>> scored = score_spans([[0.25, 0.0, 0.75]])
    >>> scored.cumulative.tolist(), scored.class_rank.tolist()
    ([[1.0, 1.0, 0.75]], [[2, 3, 1]])
    """
    given = np.atleast_2d(np.asarray(probabilities, dtype=np.float64))  # (S, V)
    if np.isnan(given).any():
        raise InvalidScores("expected span probabilities without NaN, got NaN")
    class_rank = (given[:, None, :] >= given[:, :, None]).sum(axis=2, dtype=np.int64)  # (S, V)
    running = np.cumsum(-np.sort(-given, axis=1), axis=1)  # (S, V), likeliest first
    return SpanScores(given, running[np.arange(len(given))[:, None], class_rank - 1], class_rank)


@dataclass(frozen=True, eq=False)
class Candidates:
    """Spans of a text with their probabilities over W and O; `ranks` are nc_idx of each, for methods that need it."""

    starts: Ints  # (S,)
    ends: Ints  # (S,)
    probabilities: Floats  # (S, W + 1)
    ranks: Ints | None = None  # (S, W + 1), 0 where no listed labeling holds the entity, 1 for O

    @cached_property
    def keys(self) -> tuple[tuple[int, int], ...]:
        """(start, end) of each span; made once, because whoever looks up many spans asks for it as often."""
        return tuple(zip(self.starts.tolist(), self.ends.tolist(), strict=True))

    def above(self, p_min: float, *, extra: Iterable[tuple[int, int]] = ()) -> Candidates:
        """Return the spans that are an entity with probability `p_min` at least, and those of `extra`."""
        kept = self.probabilities[:, :-1].sum(axis=1) >= p_min
        wanted = set(extra)
        if wanted and not kept.all():
            kept |= np.array([key in wanted for key in self.keys], dtype=np.bool_)
        return self if kept.all() else self.take(kept)

    def take(self, kept: Bools | Ints) -> Candidates:
        """Return the spans where `kept` says so, or those in these rows."""
        ranks = None if self.ranks is None else self.ranks[kept]
        return Candidates(self.starts[kept], self.ends[kept], self.probabilities[kept], ranks)


def listing_floor(space: LabelSpace, p_min: float) -> float:
    """Return how low spans must be listed for none of the candidates to be missed."""
    return min(1e-6, p_min / (10 * len(space.classes)))


def candidate_spans(
    marginals: Marginals, space: LabelSpace, *, p_min: float, extra: Sequence[Span] = (), floor: float | None = None
) -> Candidates:
    """Return `S0 = {(a, b) : 1 - P_ent(a, b, O) >= p_min}` and the spans of `extra`, in text order (METHODS 6.3).

    With a `floor` below `p_min` the spans down to it are listed too, for flags (METHODS 11.2); their probabilities are
    those of the listing, without classes that it leaves out. `Candidates.above` tells the two apart again.
    """
    listed = marginals.starts.size
    every = np.zeros((listed + len(extra), 2), dtype=np.int64)
    every[:listed, 0], every[:listed, 1] = marginals.starts, marginals.ends
    if extra:
        every[listed:] = [(span.start, span.end) for span in extra]
    # One number for each span, in text order.
    base = int(every.max(initial=0)) + 1
    numbers, inverse = np.unique(every[:, 0] * base + every[:, 1], return_inverse=True)
    starts, ends = numbers // base, numbers % base
    rows = np.zeros((numbers.size, len(space.classes)))
    np.add.at(rows, (inverse[:listed], marginals.classes), marginals.probabilities)
    totals = rows.sum(axis=1)
    kept = np.zeros(numbers.size, dtype=np.bool_)
    kept[inverse[listed:]] = True
    # Classes below the listing's floor may lift a span over p_min (by a tenth of it at most: `listing_floor`).
    exact = kept | (totals >= 0.9 * p_min)
    if floor is not None:
        kept |= ~exact & (totals >= floor)
    rows[exact] = marginals.of_spans(starts[exact], ends[exact])
    kept |= exact & (rows.sum(axis=1) >= (p_min if floor is None else min(floor, p_min)))
    return Candidates(starts[kept], ends[kept], with_outside(rows[kept]))


def list_spans(labels: npt.NDArray[np.int16]) -> tuple[Ints, Ints, Ints, Ints]:
    """Return labeling number, start, end and class of every entity of legal labelings (K, N), in order.

    >>> [part.tolist() for part in list_spans(np.array([[1, 2, 0, 3], [0, 1, 1, 2]], np.int16))]
    [[0, 0, 1, 1], [0, 3, 1, 2], [2, 4, 2, 4], [0, 1, 0, 0]]
    """
    begins = labels % 2 == 1
    goes_on = np.zeros(labels.shape, dtype=np.bool_)  # the next token continues this one's entity
    goes_on[:, :-1] = (labels[:, 1:] > 0) & (labels[:, 1:] % 2 == 0)
    rows, starts = np.nonzero(begins)
    _, lasts = np.nonzero((labels > 0) & ~goes_on)  # one per entity, in the same order
    classes = labels[rows, starts].astype(np.int64) // 2
    return rows.astype(np.int64), starts.astype(np.int64), lasts.astype(np.int64) + 1, classes


@dataclass(frozen=True, eq=False)
class TopMarginals:
    """P_ent summed over a ranked list and renormalised by its mass: the paper's convention (METHODS 2.4)."""

    starts: Ints
    ends: Ints
    classes: Ints
    probabilities: Floats
    width: int

    @classmethod
    def of(
        cls,
        labels: npt.NDArray[np.int16],
        log_probabilities: npt.ArrayLike,
        *,
        space: LabelSpace,
        renormalise: bool = True,
    ) -> TopMarginals:
        """Sum over ranked labelings: labels (K, N) ids, log_probabilities (K,).

        The paper's example: its sums are those of the labelings it prints, so they are not renormalised here.

        >>> space = LabelSpace(["PER", "LOC", "ORG"])
        >>> sarah = np.array([space.encode(row.split()) for row in (
        ...     "O O O B-LOC I-LOC I-LOC", "B-PER O O B-LOC I-LOC I-LOC",
        ...     "O O O O O O", "B-PER O O B-ORG B-ORG I-ORG")])
        >>> logs = np.log([0.48, 0.28, 0.02, 1e-300])
        >>> top = TopMarginals.of(sarah, logs, space=space, renormalise=False)
        >>> [round(float(p), 2) for p in top.of_span(3, 6)]  # New York City: PER, LOC, ORG
        [0.0, 0.76, 0.0]
        >>> [round(float(p), 2) for p in top.of_span(0, 1)]  # Sarah
        [0.28, 0.0, 0.0]
        """
        given = np.asarray(log_probabilities, dtype=np.float64)
        shares = np.exp(given - np.logaddexp.reduce(given)) if renormalise else np.exp(given)  # (K,)
        rows, starts, ends, classes = list_spans(labels)
        weights = shares[rows]
        keys = np.column_stack([starts, ends, classes])
        distinct, inverse = np.unique(keys.reshape(-1, 3), axis=0, return_inverse=True)
        sums = np.bincount(inverse.ravel(), weights=weights, minlength=len(distinct))
        starts, ends, classes = distinct.T
        return cls(starts, ends, classes, np.minimum(sums, 1.0), len(space.classes))

    def of_spans(self, starts: npt.ArrayLike, ends: npt.ArrayLike) -> Floats:
        """Return P_ent of spans for every class: (S, W)."""
        spans = zip(np.asarray(starts).tolist(), np.asarray(ends).tolist(), strict=True)
        return np.array([self.of_span(start, end) for start, end in spans]).reshape(-1, self.width)

    def of_span(self, start: int, end: int) -> Floats:
        """Return P_ent of one span for every class: (W,)."""
        row = np.zeros(self.width)
        here = (self.starts == start) & (self.ends == end)
        row[self.classes[here]] = self.probabilities[here]
        return row


def entity_ranks(best: KBest, space: LabelSpace, spans: Sequence[Span]) -> list[int]:
    """Return nc_idx of each entity: the smallest rank whose labeling contains it, 0 if none listed does."""
    if best.spans is None:
        raise InvalidArgument("expected a ranked list with spans, got none; pass space to kbest")
    table = best.spans
    ranks: list[int] = []
    for start, end, name in spans:
        w = (space.begin(name) - 1) // 2
        rows = np.flatnonzero((table.starts == start) & (table.ends == end) & (table.classes == w))
        ranks.append(int(np.searchsorted(table.offsets, rows[0], side="right")) if rows.size else 0)
    return ranks


def candidate_ranks(labels: npt.NDArray[np.int16], candidates: Candidates) -> Ints:
    """Return nc_idx of every class of every candidate span, from the best labelings (K, N): (S, W + 1); O has 1."""
    result = np.zeros(candidates.probabilities.shape, dtype=np.int64)
    result[:, -1] = 1
    row_of = {key: i for i, key in enumerate(candidates.keys)}
    rows, starts, ends, classes = list_spans(labels)
    for row, start, end, w in zip(rows.tolist(), starts.tolist(), ends.tolist(), classes.tolist(), strict=True):
        at = row_of.get((start, end))
        if at is not None and not result[at, w]:
            result[at, w] = row + 1
    return result


def span_labels(space: LabelSpace) -> tuple[str, ...]:
    """Return the labels of a span's columns: the classes, then "O"."""
    return (*space.classes, OUTSIDE)


def label_group(label: str, counts: Mapping[str, int], *, n_min: int) -> tuple[str, ...]:
    """Return the classes whose entities answer for `label`: itself, or all rare classes together (METHODS 6.2).

    `counts` are calibration tasks per class; the candidate is counted as one more task with its class.

    >>> label_group("PER", {"PER": 99, "EVT": 40, "LAW": 70}, n_min=100)
    ('PER',)
    >>> label_group("LAW", {"PER": 99, "EVT": 40, "LAW": 70}, n_min=100)
    ('PER', 'EVT', 'LAW')
    """
    if counts[label] + 1 >= n_min:
        return (label,)
    return tuple(name for name, count in counts.items() if count + (name == label) < n_min)


def label_members(scores: Floats, members: Sequence[Bools | None]) -> Bools:
    """Assemble the sets of S spans from one membership column per label; None marks an uncalibrated label.

    An uncalibrated class stays out of every set (it is named once per task instead); an uncalibrated O
    cannot be excluded, so it stays in.
    """
    result = np.zeros(scores.shape, dtype=np.bool_)
    for column, inside in enumerate(members):
        if inside is not None:
            result[:, column] = inside
        elif column == len(members) - 1:
            result[:, column] = True
    return result
