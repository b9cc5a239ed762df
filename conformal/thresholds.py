"""Frozen thresholds: calibrate once, answer at any level, keep as bytes (METHODS 3, 5.2, 6.2).

`Thresholds` holds the sorted scores themselves, per cell and per class, because which of them answer
depends on the test task (its cell, the candidate's class) and on the level. It depends on the rows only,
not on their order.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from conformal.errors import EmptyCalibration, InvalidArgument, InvalidLabels, InvalidScores
from conformal.labels import OUTSIDE, LabelSpace
from conformal.pairs import PairTable
from conformal.quantile import CalibrationScores, Floats, Level, ScoreTable, checked_scores, effective_sample_size
from conformal.rows import EntityRows, TaskRows
from conformal.scores import Method, Tuned
from conformal.strata import Pool, Strata
from conformal.subsequence import EntityMethod, Ints, label_group
from conformal.tuning import drawn_for_tuning, tune_apart, tune_spans

if TYPE_CHECKING:
    from conformal.class_answers import ClassAnswers


@dataclass(frozen=True, eq=False)
class LabelScores:
    """Calibration scores of one label's entities, ascending, each with the number of its task's entities."""

    scores: Floats  # (m,), or (m, 2) for naive
    sizes: Ints  # (m,)
    weights: Floats | None = None  # (m,) of their tasks; None: all alike

    @cached_property
    def tasks(self) -> int:
        """Number of tasks that have such an entity."""
        column = self.scores if self.scores.ndim == 1 else self.scores[:, 0]
        return ScoreTable.hierarchical(column, self.sizes).n


@dataclass(frozen=True, eq=False)
class RareRows:
    """Entities of the classes with few tasks, kept apart so that classes can be merged task by task."""

    task: Ints
    label: Ints  # position in Thresholds.classes
    score: Floats
    weight: Floats | None = None


@dataclass(frozen=True)
class LabelPool:
    """What answers for a label: its own entities, or those of all rare classes together."""

    name: str
    labels: tuple[str, ...]
    n: int
    calibrated: bool
    table: ScoreTable = field(repr=False, compare=False)


@dataclass(frozen=True)
class CellPool:
    """What answers for a unit: the pool of its cell and that pool's scores."""

    pool: Pool
    table: ScoreTable = field(repr=False, compare=False)

    @property
    def n(self) -> int:
        """Number of calibration tasks, whether or not they suffice."""
        return self.pool.n

    @cached_property
    def unreachable(self) -> float:
        """Share of units, weighted, whose label the model cannot express; above about alpha every set is open."""
        finite = int(np.searchsorted(self.table.scores, np.inf))
        return float(self.table.above[finite] / self.table.total) if self.table.scores.size else 0.0


@dataclass(frozen=True, eq=False)
class Thresholds:
    """Calibrated thresholds of a method; made by `calibrate`, or read back by `Thresholds.from_bytes`.

    Exact per pool for exchangeable tasks (METHODS 5.2), for a random unit of a random task where tasks have several
    (METHODS 10.2); exact per class for a random entity of a random
    task that has one, when the class stands alone and weights are hierarchical (METHODS 6.2). With `weights` (METHODS
    3.7) valid for tasks selected with known probabilities; which pool answers depends on counts of tasks all the same.
    """

    method: Method
    entity_method: EntityMethod
    strata: Strata
    n_min: int
    classes: tuple[str, ...]
    cells: Mapping[str, Floats]  # ascending scores of each cell: (m,), or (m, 2) for pair methods
    labels: Mapping[str, LabelScores]  # of each class and "O"
    rare: RareRows
    weights: Mapping[str, Floats] = field(default_factory=dict)  # of each cell's rows; empty: all rows weigh alike
    test_weight: float = 1.0  # the greatest weight that a task to come may have
    groups: Mapping[str, Ints] = field(default_factory=dict)  # of each cell's rows: their task, -1 if that has no other
    _partitions: dict[frozenset[str], dict[str, Pool]] = field(default_factory=dict, repr=False)
    _pools: dict[Pool, CellPool] = field(default_factory=dict, repr=False)
    _label_pools: dict[str, LabelPool] = field(default_factory=dict, repr=False)
    answers: dict[tuple[Thresholds | None, str], ClassAnswers] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for array in (*self.cells.values(), *(label.scores for label in self.labels.values())):
            array.setflags(write=False)

    @property
    def n(self) -> int:
        """Number of calibration tasks."""
        return self._task_count(tuple(self.cells))

    @cached_property
    def counts(self) -> dict[str, int]:
        """Number of calibration tasks that have a unit in each cell."""
        return {cell: self._task_count((cell,)) for cell in self.cells}

    def _task_count(self, cells: Sequence[str]) -> int:
        """Return how many tasks have a unit in any of these cells."""
        if not self.groups:
            return sum(len(self.cells[cell]) for cell in cells if cell in self.cells)
        return _group_sizes(self._groups_of(cells))[0]

    def _groups_of(self, cells: Sequence[str]) -> Ints:
        held = [self.groups[cell] for cell in cells if cell in self.cells]
        return np.concatenate(held) if held else np.zeros(0, dtype=np.int64)

    def pool(self, cell: str, *, beside: Iterable[str] = ()) -> CellPool:
        """Return what answers for a unit in `cell`, also a cell never seen; `UnknownStratum` if impossible.

        `beside` are the cells of the same task's other units: the task counts once in each of them (METHODS 10.2).
        """
        touched = frozenset((cell, *beside))
        home = self._partitions.get(touched)
        if home is None:
            home = self._partitions[touched] = self._partition(touched)
        pool = home[cell]
        answering = self._pools.get(pool)
        if answering is None:
            answering = self._pools[pool] = CellPool(pool, self._table(pool))
        return answering

    def _partition(self, touched: frozenset[str]) -> dict[str, Pool]:
        counts = Counter(self.counts)
        counts.update(touched)

        def together(cells: Sequence[str]) -> int:
            return self._task_count(cells) + (not touched.isdisjoint(cells))

        pools = self.strata.partition(counts, n_min=self.n_min, together=together)
        return {cell: pool for pool in pools for cell in pool.cells}

    def _table(self, pool: Pool) -> ScoreTable:
        names = [name for name in pool.cells if name in self.cells] if pool.calibrated else []
        scores = np.concatenate([self.cells[name] for name in names]) if names else np.zeros(0)
        weights = np.concatenate([self.weights[name] for name in names]) if names and self.weights else None
        sizes = _group_sizes(self._groups_of(names))[1] if names and self.groups else None
        return self.method.table(scores, weights=weights, test_weight=self.test_weight, sizes=sizes)

    def effective_n(self, cell: str) -> float:
        """Return how many equally weighted tasks those that answer for `cell` are worth (METHODS 3.7)."""
        pool = self.pool(cell).pool
        if not self.weights:
            return float(pool.n)
        weights = np.concatenate([self.weights.get(name, np.zeros(0)) for name in pool.cells])
        if self.groups:  # a task once
            groups = self._groups_of(pool.cells)
            _, first = np.unique(groups, return_index=True)
            once = groups < 0
            once[first] = True
            weights = weights[once]
        return effective_sample_size(weights)

    def threshold(self, cell: str, alpha: Level) -> float:
        """Return the threshold of a cell at level alpha; `+inf` means that every set there is open."""
        return self.pool(cell).table.threshold(alpha)

    def label_pool(self, label: str) -> LabelPool:
        """Return what answers for a class or "O" (METHODS 6.2); raises `InvalidLabels` for others.

        A class with at least `n_min` tasks, the candidate's counted, stands alone. Classes with fewer are
        merged: a task with M entities of these classes gives each 1/M. Too few even so: not calibrated.
        """
        answering = self._label_pools.get(label)
        if answering is None:
            answering = self._label_pool(label)
            self._label_pools[label] = answering
        return answering

    def _label_pool(self, label: str) -> LabelPool:
        if label not in (*self.classes, OUTSIDE):
            raise InvalidLabels(f"expected a class of {self.classes} or 'O', got {label!r}")
        n_min = self.label_n_min
        own = self.labels[label]
        if own.tasks + 1 >= n_min:
            return LabelPool(label, (label,), own.tasks, True, self._label_table(own.scores, own.sizes, own.weights))
        nothing = self._label_table(own.scores[:0], own.sizes[:0], None)
        if label == OUTSIDE:
            return LabelPool(label, (label,), own.tasks, False, nothing)
        names = label_group(label, {name: self.labels[name].tasks for name in self.classes}, n_min=n_min)
        chosen = np.isin(self.rare.label, [self.classes.index(name) for name in names])
        _, inverse, sizes = np.unique(self.rare.task[chosen], return_inverse=True, return_counts=True)
        if sizes.size + 1 < n_min:
            return LabelPool("+".join(names), names, int(sizes.size), False, nothing)
        weights = None if self.rare.weight is None else self.rare.weight[chosen]
        table = self._label_table(self.rare.score[chosen], sizes[inverse], weights)
        return LabelPool("+".join(names), names, int(sizes.size), True, table)

    def _label_table(self, scores: Floats, sizes: Ints, weights: Floats | None) -> ScoreTable:
        each = None if self.entity_method.weights == "pooled" else sizes
        rows = CalibrationScores.of(scores, weights=weights, test_weight=self.test_weight, sizes=each)
        if self.entity_method.is_pair:
            return PairTable.of_pairs(rows, share=(self.entity_method.tuned or Tuned()).share)
        return rows.table()

    @property
    def label_n_min(self) -> int:
        """Least number of tasks, the candidate's included, for a class to be calibrated."""
        return self.n_min if self.entity_method.n_min is None else self.entity_method.n_min

    def label_threshold(self, label: str, alpha: Level) -> float:
        """Return the threshold of a class or "O"; `+inf` when it is not calibrated."""
        return self.label_pool(label).table.threshold(alpha)

    @cached_property
    def uncalibrated(self) -> tuple[str, ...]:
        """Classes (and "O") with too few tasks: named once per task, in no span's set."""
        return tuple(name for name in (*self.classes, OUTSIDE) if not self.label_pool(name).calibrated)

    def check_space(self, space: LabelSpace) -> None:
        """Raise unless the label space is the one these thresholds were calibrated with."""
        if space.classes != self.classes:
            raise InvalidLabels(
                f"expected the label space {self.classes} of these thresholds, got {space.classes}; "
                "fold the potentials to it, or calibrate again"
            )

    def to_bytes(self) -> bytes:
        """Return a versioned, self-describing JSON text; equal rows give equal bytes."""
        from conformal.serialise import to_bytes  # noqa: PLC0415 - the two modules describe one another

        return to_bytes(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Thresholds:
        """Read `to_bytes` back, bit for bit; raises `InvalidThresholds`."""
        from conformal.serialise import from_bytes  # noqa: PLC0415 - the two modules describe one another

        return from_bytes(data)

    @property
    def digest(self) -> str:
        """SHA-256 of the bytes: equal exactly for thresholds of equal rows and settings."""
        return hashlib.sha256(self.to_bytes()).hexdigest()


def calibrate(
    tasks: TaskRows,
    entities: EntityRows | None = None,
    *,
    classes: Sequence[str],
    method: Method | None = None,
    entity_method: EntityMethod | None = None,
    strata: Strata | None = None,
    n_min: int = 100,
    test_weight: float | None = None,
    allow_empty: bool = False,
) -> Thresholds:
    """Freeze thresholds from calibration rows (METHODS 3 to 6, 10.2).

    Tasks must be exchangeable with those to come, with all their units, and none may have been dropped because of its
    label; labels out of reach count as `+inf`. A method that must freeze something first (`Method.needs_tuning`) does
    so on a part of the rows that is drawn by task number and left out of calibration. Rows that differ in weight give
    weighted thresholds (METHODS 3.7): `test_weight` is the greatest weight a task to come may have, the greatest of
    the rows' own where nothing is said; a greater one than the task's is valid, with larger sets. Raises
    `EmptyCalibration` without rows (unless `allow_empty`, which gives open sets), `UnknownStratum`, `InvalidLabels`,
    `InvalidScores`, `InvalidArgument` (weights).

    >>> rows = TaskRows.of(["en/1-10"] * 4, [-0.1, -0.2, -0.4, -2.0])
    >>> thresholds = calibrate(rows, classes=["PER"], n_min=4)
    >>> thresholds.threshold("en/1-10", "0.25"), thresholds.threshold("de/1-10", "0.25")
    (2.0, inf)
    """
    chosen = method or Method()
    entity_chosen = entity_method or EntityMethod(chosen.span_name)
    if chosen.is_heuristic and entity_chosen.name != chosen.span_name:
        raise InvalidArgument(f"expected {chosen.span_name} for the spans of {chosen.name}, got {entity_chosen.name}")
    chosen = replace(chosen, spans="")  # said by the entity method from here on
    layout = strata or Strata()
    names = LabelSpace(classes).classes
    if not len(tasks) and not allow_empty:
        raise EmptyCalibration("expected at least one calibration row, got none; label some tasks first")
    rows = entities if entities is not None else EntityRows.join([])
    # Class thresholds rest on every row that the span method did not freeze something on: what the full-sequence method
    # froze says nothing about single entities.
    greatest = test_weight if test_weight is not None else _greatest(tasks.weight)
    if tasks.weight is not None and np.all(tasks.weight == greatest):
        tasks = replace(tasks, weight=None)  # alike: plain ranks say the same, and in fewer bytes
    scored = rows
    if entity_chosen.needs_tuning:
        drawn = drawn_for_tuning(rows.task)
        entity_chosen, scored = tune_spans(entity_chosen, rows.take(drawn)), rows.take(~drawn)
    labels, rare = _freeze_entities(scored, names, entity_chosen, n_min, _task_weights(tasks, scored))
    if chosen.needs_tuning:
        chosen, tasks = tune_apart(chosen, tasks, rows, classes=names)
    tasks = chosen.describe(tasks, rows)
    scores = chosen.scores(tasks.ranks, u=tasks.u)
    keys = (scores[:, 1], scores[:, 0]) if chosen.is_pair else (scores,)
    if tasks.weight is not None:
        keys = (tasks.weight, *keys)
    groups = _canonical_groups(tasks, scores)
    if groups is not None:
        keys = (groups, *keys)
    order = np.lexsort((*keys, tasks.codes))  # by cell, then ascending
    bounds = np.searchsorted(tasks.codes[order], np.arange(len(tasks.names) + 1))
    rows_of = {
        layout.check(name): order[bounds[i] : bounds[i + 1]]
        for i, name in enumerate(tasks.names)
        if bounds[i] < bounds[i + 1]
    }
    cells = {name: scores[at] for name, at in rows_of.items()}
    layout.partition(Counter(), n_min=n_min)  # refuses a bad n_min at once
    own: dict[str, Ints] = {} if groups is None else {name: groups[at] for name, at in rows_of.items()}
    if tasks.weight is None:
        return Thresholds(chosen, entity_chosen, layout, n_min, names, cells, labels, rare, groups=own)
    ScoreTable.weighted(tasks.weight, tasks.weight, test_weight=greatest)  # refuses bad weights at once
    weights = {name: tasks.weight[at] for name, at in rows_of.items()}
    return Thresholds(chosen, entity_chosen, layout, n_min, names, cells, labels, rare, weights, greatest, own)


def _canonical_groups(tasks: TaskRows, scores: Floats) -> Ints | None:
    """Return numbers of the tasks that have several units, by their contents instead of by their order; -1 for others.

    None where no task has several. The order is that of a sum of hashes of the units, which knows no order itself.
    """
    if tasks.unit is None:  # one each
        return None
    distinct, inverse, counts = np.unique(tasks.numbers, return_inverse=True, return_counts=True)
    if counts.max(initial=1) == 1:
        return None
    names = [int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") for name in tasks.names]
    mixed = np.array(names, dtype=np.uint64)[tasks.codes]
    weights = () if tasks.weight is None else (tasks.weight,)
    for column in (*weights, *_columns(scores)):
        mixed = _mix(mixed ^ np.ascontiguousarray(column).view(np.uint64))
    sums = np.zeros(distinct.size, dtype=np.uint64)
    np.add.at(sums, inverse, mixed)
    several = counts > 1
    order = np.argsort(sums[several], kind="stable")
    numbers = np.full(distinct.size, -1, dtype=np.int64)
    numbers[np.flatnonzero(several)[order]] = np.arange(order.size)
    return numbers[inverse]


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Spread 64 bits over 64 bits (the finaliser of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(values ^ (values >> np.uint64(31)), dtype=np.uint64)


def _group_sizes(groups: Ints) -> tuple[int, Ints]:
    """Return the number of tasks, and how many of these rows the task of each has."""
    distinct, inverse, counts = np.unique(groups, return_inverse=True, return_counts=True)
    alone = int(counts[0]) if distinct.size and distinct[0] < 0 else 0
    sizes = np.where(groups < 0, 1, counts[inverse]) if groups.size else groups
    return alone + int((distinct >= 0).sum()), sizes


def _greatest(weights: Floats | None) -> float:
    return 1.0 if weights is None or not weights.size else float(weights.max())


def _task_weights(tasks: TaskRows, rows: EntityRows) -> Floats | None:
    """Return the weight of each entity row's task, None where all weigh alike; an entity needs its task's row."""
    if tasks.weight is None:
        return None
    order = np.argsort(tasks.numbers, kind="stable")
    numbers = tasks.numbers[order]
    at = np.minimum(np.searchsorted(numbers, rows.task), max(numbers.size - 1, 0))
    if rows.task.size and not (numbers.size and np.all(numbers[at] == rows.task)):
        raise InvalidScores("expected the task of every entity row among the weighted rows, got an unknown one")
    return tasks.weight[order][at] if rows.task.size else np.zeros(0)


def _freeze_entities(
    rows: EntityRows, classes: tuple[str, ...], method: EntityMethod, n_min: int, weights: Floats | None
) -> tuple[dict[str, LabelScores], RareRows]:
    known = {name: i for i, name in enumerate((*classes, OUTSIDE))}
    unknown = [name for i, name in enumerate(rows.names) if name not in known and np.any(rows.codes == i)]
    if unknown:
        raise InvalidLabels(f"expected entity rows of the classes {classes} or 'O', got {unknown[0]!r}")
    codes = np.array([known.get(name, -1) for name in rows.names], dtype=np.int64)[rows.codes]
    base = method.score.base
    if base.compares_labels and np.any(np.isinf(base.of_spans(rows.scored)) & (rows.scored.probability > 0)):
        raise InvalidScores(f"expected cumulative and class_rank with every entity row for {method.name}, got none")
    scores = checked_scores(method.scores(rows.scored, rank=rows.rank, outside=codes == known[OUTSIDE]))
    frozen: dict[str, LabelScores] = {}
    for name, code in known.items():
        here = codes == code
        _, inverse, counts = np.unique(rows.task[here], return_inverse=True, return_counts=True)
        sizes = counts[inverse].astype(np.int64)
        own = None if weights is None else weights[here]
        columns = (sizes, *_columns(scores[here]))
        order = np.lexsort(columns if own is None else (own, *columns))
        frozen[name] = LabelScores(scores[here][order], sizes[order], None if own is None else own[order])
    least = n_min if method.n_min is None else method.n_min
    small = [known[name] for name in classes if frozen[name].tasks < least]
    return frozen, _canonical_rare(rows.task, codes, scores, small, weights)


def _columns(scores: Floats) -> tuple[Floats, ...]:
    """Return the keys that sort scores (m,) or pairs (m, 2): the last is the first to be sorted by."""
    return (scores,) if scores.ndim == 1 else (scores[:, 1], scores[:, 0])


def _canonical_rare(task: Ints, codes: Ints, scores: Floats, small: list[int], weights: Floats | None) -> RareRows:
    """Keep the rows of rare classes, with tasks numbered by their contents instead of by their order."""
    grouped: dict[int, list[tuple[int, list[float], float]]] = {}
    for i in np.flatnonzero(np.isin(codes, small)).tolist():
        weight = 1.0 if weights is None else float(weights[i])
        grouped.setdefault(int(task[i]), []).append((int(codes[i]), np.atleast_1d(scores[i]).tolist(), weight))
    contents = sorted(sorted(group) for group in grouped.values())
    numbers = [number for number, group in enumerate(contents) for _ in group]
    held = [row for group in contents for row in group]
    return RareRows(
        np.array(numbers, dtype=np.int64),
        np.array([code for code, _, _ in held], dtype=np.int64),
        np.array([score for _, score, _ in held], dtype=np.float64).reshape(-1, *scores.shape[1:]),
        None if weights is None else np.array([weight for _, _, weight in held], dtype=np.float64),
    )
