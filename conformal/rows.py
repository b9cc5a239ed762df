"""Calibration rows as arrays: one per unit of a task for full sequences, one per entity (or junk span) for spans.

Everything that calibrates or evaluates reads these, whether they come from a decoder (`score_unit`), from a
database or from a simulation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from conformal.errors import InvalidArgument, InvalidLabels, InvalidScores
from conformal.labels import OUTSIDE, LabelSpace, Span
from conformal.quantile import Floats
from conformal.risk.doubts import FLOOR
from conformal.scores import DEFAULT_LIMIT, Ranks, cumulate
from conformal.subsequence import (
    Candidates,
    Ints,
    Marginals,
    SpanScores,
    TopMarginals,
    candidate_spans,
    entity_ranks,
    listing_floor,
    score_spans,
    span_labels,
)
from conformal.trellis import Potentials, entity_marginals, kbest, log_probability

_Number = TypeVar("_Number", np.float64, np.int64)


@dataclass(frozen=True, eq=False)
class TaskRows:
    """One row per unit of a task: its cell and where its true labeling stands. Equal lengths; see `Ranks`.

    A text that is not cut is one unit, so that there is a row per task. `u` are the tasks' boundary draws, needed when
    smoothed nc2 or nc3 are calibrated. `previous` is the log-probability of the labeling ranked just above the truth
    (0 at rank 1), for the boundary ablation. `task` numbers the tasks as the entity rows do (None: by position, one
    unit each), `unit` the units of a task (None: one each); methods that set a tuning part aside draw it by tasks.
    `weight` is 1 over the known probability with which a task was selected (METHODS 3.7), up to a common factor.
    """

    names: tuple[str, ...]  # distinct cells, sorted
    codes: Ints  # (units,) position of each unit's cell in names
    ranks: Ranks
    u: Floats | None = None
    previous: Floats | None = None
    task: Ints | None = None
    weight: Floats | None = None
    unit: Ints | None = None

    @classmethod
    def of(
        cls,
        cells: Sequence[str],
        log_probability: npt.ArrayLike,
        *,
        rank: npt.ArrayLike | None = None,
        cumulative: npt.ArrayLike | None = None,
        mass: npt.ArrayLike | None = None,
        u: npt.ArrayLike | None = None,
        previous: npt.ArrayLike | None = None,
        task: npt.ArrayLike | None = None,
        weight: npt.ArrayLike | None = None,
        unit: npt.ArrayLike | None = None,
    ) -> TaskRows:
        """Check and join the columns; without ranks only nc1 can be used."""
        count = len(cells)
        logs = _column(log_probability, count, "log_probability")
        if np.any(logs > 1e-6):
            raise InvalidScores(f"expected log-probabilities of at most 0, got {logs.max()}")
        ranks = np.zeros(count, dtype=np.int64) if rank is None else np.asarray(rank, dtype=np.int64)
        if ranks.shape != (count,) or np.any(ranks < 0):
            raise InvalidScores(f"expected {count} ranks of at least 0 (0: not found), got others")
        sums = np.zeros(count) if cumulative is None else _column(cumulative, count, "cumulative")
        masses = None if mass is None else _column(mass, count, "mass")
        draws = None if u is None else _column(u, count, "u")
        before = None if previous is None else _column(previous, count, "previous")
        numbers = None if task is None else np.asarray(task, dtype=np.int64)
        units = None if unit is None else np.asarray(unit, dtype=np.int64)
        if units is not None and (numbers is None or units.shape != (count,) or np.any(units < 0)):
            raise InvalidScores(f"expected {count} unit numbers of at least 0 beside task numbers, got others")
        if numbers is not None:
            keys = numbers if units is None else np.column_stack([numbers, units])
            if numbers.shape != (count,) or np.unique(keys, axis=0).shape[0] < count:
                raise InvalidScores(f"expected {count} distinct task numbers (or tasks and units), got others")
        weights = None if weight is None else _column(weight, count, "weight")
        return cls(*coded(cells), Ranks(logs, ranks, sums, masses), draws, before, numbers, weights, units)

    def __len__(self) -> int:
        return int(self.codes.size)

    @property
    def cells(self) -> tuple[str, ...]:
        """The cell of each row."""
        return tuple(self.names[code] for code in self.codes.tolist())

    def with_cells(self, cells: Sequence[str]) -> TaskRows:
        """Return the same rows in other cells."""
        if len(cells) != len(self):
            raise InvalidArgument(f"expected one cell per row ({len(self)}), got {len(cells)}")
        names, codes = coded(cells)
        return replace(self, names=names, codes=codes)

    @property
    def numbers(self) -> Ints:
        """The number of each row's task: as given, else its position."""
        return np.arange(len(self), dtype=np.int64) if self.task is None else self.task

    @property
    def task_count(self) -> int:
        """Number of distinct tasks."""
        return len(self) if self.unit is None else int(np.unique(self.numbers).size)

    def with_worst(self, worst: Floats) -> TaskRows:
        """Return the same rows with T of their true labelings (METHODS 7.3)."""
        return replace(self, ranks=replace(self.ranks, worst=_column(worst, len(self), "worst")))

    def take(self, index: npt.ArrayLike) -> TaskRows:
        """Return the rows at `index`."""
        at = np.asarray(index)
        rows = np.flatnonzero(at) if at.dtype == np.bool_ else at
        ranks = self.ranks
        part = Ranks(
            ranks.log_probability[rows],
            ranks.rank[rows],
            ranks.cumulative[rows],
            _taken(ranks.mass, rows),
            _taken(ranks.worst, rows),
        )
        return TaskRows(
            self.names,
            self.codes[rows],
            part,
            _taken(self.u, rows),
            _taken(self.previous, rows),
            self.numbers[rows],
            _taken(self.weight, rows),
            _taken(self.unit, rows),
        )


@dataclass(frozen=True, eq=False)
class EntityRows:
    """One row per true entity, and per candidate span that is exactly no true entity (label "O").

    `task` ties rows of a task together, `unit` those of one of its units (None: it has but one). `probability`,
    `cumulative` and `class_rank` are nc1_ent, nc2_ent and nc3_ent in the making (see `score_spans`); 0, +inf and 0 say
    that the entity cannot be expressed. `rank` is the smallest rank whose labeling contains the entity (0: none found).
    """

    task: Ints
    names: tuple[str, ...]  # distinct labels, sorted
    codes: Ints  # (rows,) position of each row's label in names
    scored: SpanScores
    rank: Ints
    unit: Ints | None = None

    @classmethod
    def of(
        cls,
        task: npt.ArrayLike,
        labels: Sequence[str],
        *,
        probability: npt.ArrayLike,
        cumulative: npt.ArrayLike | None = None,
        class_rank: npt.ArrayLike | None = None,
        rank: npt.ArrayLike | None = None,
        unit: npt.ArrayLike | None = None,
    ) -> EntityRows:
        """Check and join the columns; without `cumulative` and `class_rank` only nc1 can be used."""
        count = len(labels)
        tasks = np.asarray(task, dtype=np.int64).reshape(-1)
        if tasks.shape != (count,):
            raise InvalidScores(f"expected {count} task numbers, got {tasks.size}")
        shares = _column(probability, count, "probability")
        if np.any((shares < 0) | (shares > 1 + 1e-6)):
            raise InvalidScores("expected probabilities between 0 and 1, got others")
        sums = np.full(count, np.inf) if cumulative is None else _column(cumulative, count, "cumulative")
        class_ranks = np.zeros(count, np.int64) if class_rank is None else np.asarray(class_rank, dtype=np.int64)
        ranks = np.zeros(count, np.int64) if rank is None else np.asarray(rank, dtype=np.int64)
        if class_ranks.shape != (count,) or ranks.shape != (count,):
            raise InvalidScores(
                f"expected {count} ranks of classes and labelings, got {class_ranks.size} and {ranks.size}"
            )
        units = None if unit is None else np.asarray(unit, dtype=np.int64).reshape(-1)
        if units is not None and units.shape != (count,):
            raise InvalidScores(f"expected {count} unit numbers, got {units.size}")
        return cls(tasks, *coded(labels), SpanScores(shares, sums, class_ranks), ranks, units)

    @classmethod
    def join(cls, parts: Iterable[EntityRows]) -> EntityRows:
        """Put rows of several tasks one after the other."""
        each = list(parts)
        if not each:
            return cls.of(np.zeros(0, np.int64), (), probability=np.zeros(0))
        scored = SpanScores(
            np.concatenate([part.scored.probability for part in each]),
            np.concatenate([part.scored.cumulative for part in each]),
            np.concatenate([part.scored.class_rank for part in each]),
        )
        names = tuple(sorted({name for part in each for name in part.names}))
        position = {name: i for i, name in enumerate(names)}
        codes = [np.array([position[name] for name in part.names], np.int64)[part.codes] for part in each]
        return cls(
            np.concatenate([part.task for part in each]),
            names,
            np.concatenate(codes),
            scored,
            np.concatenate([part.rank for part in each]),
            None if all(part.unit is None for part in each) else np.concatenate([part.units for part in each]),
        )

    def __len__(self) -> int:
        return int(self.codes.size)

    def with_tasks(self, task: npt.ArrayLike) -> EntityRows:
        """Return the same rows with other task numbers."""
        tasks = np.asarray(task, dtype=np.int64)
        if tasks.shape != self.task.shape:
            raise InvalidScores(f"expected {len(self)} task numbers, got {tasks.size}")
        return replace(self, task=tasks)

    @property
    def units(self) -> Ints:
        """The unit of each row within its task: 0 where a task has but one."""
        return np.zeros(len(self), dtype=np.int64) if self.unit is None else self.unit

    @property
    def labels(self) -> tuple[str, ...]:
        """The label of each row."""
        return tuple(self.names[code] for code in self.codes.tolist())

    def take(self, index: npt.ArrayLike) -> EntityRows:
        """Return the rows at `index`."""
        at = np.asarray(index)
        rows = np.flatnonzero(at) if at.dtype == np.bool_ else at
        scored = SpanScores(self.scored.probability[rows], self.scored.cumulative[rows], self.scored.class_rank[rows])
        return EntityRows(
            self.task[rows], self.names, self.codes[rows], scored, self.rank[rows], _taken(self.unit, rows)
        )


@dataclass(frozen=True, eq=False)
class UnitScores:
    """Where the truth of one unit stands: the numbers a `TaskRows` and an `EntityRows` are made of.

    `token_spans` are those of the entity rows, None for those that lie on no token bounds. `best` is y(1), `listed` are
    the spans that flags may lie on, those of y(1) among them (METHODS 11.2).
    """

    log_probability: float
    rank: int
    cumulative: float
    previous: float
    mass: float
    entities: EntityRows
    token_spans: tuple[tuple[int, int] | None, ...] = ()
    best: tuple[Span, ...] = ()
    listed: Candidates | None = None

    @property
    def expressible(self) -> bool:
        """Whether the model can produce the true labeling at all."""
        return self.log_probability > -np.inf


def score_unit(
    potentials: Potentials,
    space: LabelSpace,
    *,
    spans: Sequence[Span],
    lost: Sequence[str] = (),
    inexpressible: bool = False,
    task: int = 0,
    unit: int | None = None,
    limit: int = DEFAULT_LIMIT,
    p_min: float = 0.01,
    top_k: int | None = None,
) -> UnitScores:
    """Score a unit's true entities: as one labeling, and each by itself.

    `spans` are the entities that lie on token bounds (they may overlap), `lost` the classes of those that
    do not; `inexpressible` says that something else of the label has no place here, such as a class the model
    does not have. A label the model cannot express scores `+inf` and is counted (METHODS 3.3): the labeling when
    anything is lost or overlaps, an entity when it is lost. Ranks are searched up to `limit`. Raises
    `InvalidLabels` for classes outside the space.
    """
    for name in (*(span.label for span in spans), *lost):
        space.begin(name)
    for span in spans:
        if not 0 <= span.start < span.end <= potentials.length:
            raise InvalidLabels(f"expected spans inside 0..{potentials.length}, got {span.start}..{span.end}")
    labels = None if lost or inexpressible or _overlap(spans) else space.ids(spans, potentials.length)
    log_p = -np.inf if labels is None else log_probability(potentials, labels)
    rank, cumulative, previous = 0, np.inf, 0.0
    best = kbest(potentials, limit, space=space, above=log_p if log_p > -np.inf else None)
    if labels is not None and log_p > -np.inf:
        same = np.flatnonzero((best.labels == labels).all(axis=1))
        if same.size:
            at = int(same[0])
            rank, log_p = at + 1, float(best.log_probabilities[at])
            cumulative = float(cumulate(best.log_probabilities[: at + 1])[-1])
            previous = float(best.log_probabilities[at - 1]) if at else 0.0
    mass = 1.0
    marginals: Marginals
    if top_k is None:
        marginals = entity_marginals(potentials, space, floor=listing_floor(space, p_min))
    else:
        top = kbest(potentials, top_k)
        mass = float(cumulate(top.log_probabilities)[-1])
        marginals = TopMarginals.of(top.labels, top.log_probabilities, space=space)
    first = tuple(space.spans(best.labels[0]))
    # Listed without a look at the label: what is flagged must not depend on it in any digit.
    listed = candidate_spans(marginals, space, p_min=p_min, extra=first, floor=FLOOR)
    candidates = candidate_spans(marginals, space, p_min=p_min, extra=spans)
    entities, token_spans = _entity_rows(candidates, space, spans, lost, task, entity_ranks(best, space, spans))
    if unit is not None:
        entities = replace(entities, unit=np.full(len(entities), unit, dtype=np.int64))
    return UnitScores(log_p, rank, cumulative, previous, mass, entities, token_spans, first, listed)


def _entity_rows(
    candidates: Candidates,
    space: LabelSpace,
    spans: Sequence[Span],
    lost: Sequence[str],
    task: int,
    ranks: Sequence[int],
) -> tuple[EntityRows, tuple[tuple[int, int] | None, ...]]:
    names = span_labels(space)
    column = {name: i for i, name in enumerate(names)}
    scored = score_spans(candidates.probabilities)
    row_of = {key: i for i, key in enumerate(candidates.keys)}
    true_keys = {(span.start, span.end) for span in spans}
    picks = [(row_of[span.start, span.end], column[span.label]) for span in spans]
    picks += [(i, column[OUTSIDE]) for key, i in row_of.items() if key not in true_keys]
    rows = np.array([pick[0] for pick in picks], dtype=np.int64)
    columns = np.array([pick[1] for pick in picks], dtype=np.int64)
    gone = len(lost)
    entities = EntityRows.of(
        np.full(len(picks) + gone, task, dtype=np.int64),
        [*(names[c] for c in columns.tolist()), *lost],
        probability=np.concatenate([scored.probability[rows, columns], np.zeros(gone)]),
        cumulative=np.concatenate([scored.cumulative[rows, columns], np.full(gone, np.inf)]),
        class_rank=np.concatenate([scored.class_rank[rows, columns], np.zeros(gone, np.int64)]),
        rank=np.concatenate([np.array(ranks, np.int64), np.zeros(len(picks) - len(spans) + gone, np.int64)]),
    )
    return entities, (*(candidates.keys[row] for row, _ in picks), *[None] * gone)


def task_rows(
    cells: Sequence[str],
    scores: Sequence[UnitScores],
    *,
    u: npt.ArrayLike | None = None,
    task: npt.ArrayLike | None = None,
    unit: npt.ArrayLike | None = None,
) -> TaskRows:
    """Collect scored units into rows; `task` and `unit` number them where tasks have several."""
    if len(cells) != len(scores):
        raise InvalidArgument(f"expected one cell per unit ({len(scores)}), got {len(cells)}")
    return TaskRows.of(
        cells,
        [s.log_probability for s in scores],
        rank=[s.rank for s in scores],
        cumulative=[s.cumulative for s in scores],
        mass=[s.mass for s in scores],
        previous=[s.previous for s in scores],
        u=u,
        task=task,
        unit=unit,
    )


def coded(values: Sequence[str]) -> tuple[tuple[str, ...], Ints]:
    """Return the distinct values, sorted, and the position of each value among them."""
    names = tuple(sorted(set(values)))
    position = {name: i for i, name in enumerate(names)}
    return names, np.fromiter((position[value] for value in values), dtype=np.int64, count=len(values))


def _overlap(spans: Sequence[Span]) -> bool:
    ordered = sorted(spans)
    return any(after.start < before.end for before, after in pairwise(ordered))


def _column(values: npt.ArrayLike, count: int, name: str) -> Floats:
    array = np.asarray(values, dtype=np.float64).reshape(-1)
    if array.shape != (count,):
        raise InvalidScores(f"expected {count} values of {name}, got {array.size}")
    if np.isnan(array).any():
        raise InvalidScores(f"expected {name} without NaN, got NaN")
    return array


def _taken(values: npt.NDArray[_Number] | None, rows: Ints) -> npt.NDArray[_Number] | None:
    return None if values is None else values[rows]
