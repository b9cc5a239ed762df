"""Coverage over random splits of labelled rows, in total and by group (METHODS 9).

Rows are scored once; a split only sorts and counts, so many splits, levels and methods cost little.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from conformal.errors import EmptyCalibration, InvalidArgument
from conformal.monitor.coverage import below_target
from conformal.quantile import Bools, Floats, Level
from conformal.rows import EntityRows, TaskRows, coded
from conformal.scores import Boundary, Method, Ranks
from conformal.strata import NO_STRATA, WHOLE, Strata
from conformal.subsequence import EntityMethod, Ints
from conformal.thresholds import Thresholds, calibrate


@dataclass(frozen=True, eq=False)
class Coverage:
    """Covered and total test rows: R splits, A levels, G groups.

    `n` is the number of calibration rows behind a group, 0 where its rows were answered by several pools;
    with one pool, the covered count follows the beta-binomial law that `below` judges by. `open` counts
    rows whose threshold was infinite (they are covered).
    """

    alphas: tuple[str, ...]
    groups: tuple[str, ...]
    covered: Ints  # (R, A, G)
    open: Ints  # (R, A, G)
    total: Ints  # (R, G)
    n: Ints  # (R, G)

    @property
    def share(self) -> Floats:
        """Covered share: (R, A, G), NaN where a group has no test row."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.covered / self.total[:, None, :]

    @property
    def mean(self) -> Floats:
        """Mean of the share over splits: (A, G)."""
        return np.asarray(np.nanmean(self.share, axis=0))

    @property
    def spread(self) -> Floats:
        """Standard deviation of the share over splits (which overlap, so no division by sqrt R): (A, G)."""
        return np.asarray(np.nanstd(self.share, axis=0))

    def below(self, split: int) -> Floats:
        """p-values of "below target" for one split: (A, G), NaN where several pools are mixed."""
        result = np.full((len(self.alphas), len(self.groups)), np.nan)
        for a, alpha in enumerate(self.alphas):
            for g in range(len(self.groups)):
                if self.n[split, g] and self.total[split, g]:
                    result[a, g] = below_target(
                        int(self.covered[split, a, g]),
                        int(self.total[split, g]),
                        n=int(self.n[split, g]),
                        alpha=alpha,
                    )
        return result


@dataclass(frozen=True, eq=False)
class Answers:
    """For each test row: whether its set covers the truth, whether it is open, its pool and that pool's n."""

    covered: Bools
    open: Bools
    pool: Ints  # rows with equal numbers were answered by the same calibration rows
    n: Ints


def covers(thresholds: Thresholds, rows: TaskRows, alpha: Level) -> Answers:
    """Judge test rows at level alpha: "covered" is `score(truth) <= threshold` (METHODS 3.4)."""
    method = thresholds.method
    scores = method.scores(rows.ranks, u=rows.u)
    before = previous_row_scores(rows, method)
    covered = np.zeros(len(rows), dtype=np.bool_)
    unbounded = np.zeros(len(rows), dtype=np.bool_)
    pools = np.zeros(len(rows), dtype=np.int64)
    sizes = np.zeros(len(rows), dtype=np.int64)
    numbers: dict[tuple[str, ...], int] = {}
    for cell, beside, here in _alike(rows):
        pool = thresholds.pool(cell, beside=beside)
        covered[here] = method.members(
            scores[here],
            pool.table,
            alpha,
            previous=None if before is None else before[here],
            u=None if rows.u is None else rows.u[here],
        )
        unbounded[here] = pool.table.threshold(alpha) == np.inf
        pools[here] = numbers.setdefault(pool.pool.cells, len(numbers))
        sizes[here] = pool.n
    return Answers(covered, unbounded, pools, sizes)


def _alike(rows: TaskRows) -> Iterator[tuple[str, tuple[str, ...], Ints]]:
    """Yield the rows that one pool answers for: their cell, the cells that their tasks touch, their positions.

    Only where tasks have several units do the cells of the others matter (METHODS 10.2).
    """
    if rows.unit is None:
        touched: list[tuple[int, ...]] = [()] * len(rows)
    else:
        cells_of: dict[int, set[int]] = {}
        for number, code in zip(rows.numbers.tolist(), rows.codes.tolist(), strict=True):
            cells_of.setdefault(number, set()).add(code)
        kinds = {number: tuple(sorted(codes)) for number, codes in cells_of.items()}
        touched = [kinds[number] for number in rows.numbers.tolist()]
    groups: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for i, key in enumerate(zip(rows.codes.tolist(), touched, strict=True)):
        groups.setdefault(key, []).append(i)
    for (code, codes), at in groups.items():
        yield rows.names[code], tuple(rows.names[each] for each in codes), np.array(at, dtype=np.int64)


def previous_row_scores(rows: TaskRows, method: Method) -> Floats | None:
    """Return the score of the labeling ranked just above each truth (-inf at rank 1), None if not recorded or used."""
    if rows.previous is None or method.boundary not in (Boundary.FULL, Boundary.PAPER):
        return None
    ranks = rows.ranks
    above = Ranks(
        rows.previous, np.maximum(ranks.rank - 1, 0), ranks.cumulative - np.exp(ranks.log_probability), ranks.mass
    )
    unsmoothed = Method(method.name, limit=method.limit, top_k=method.top_k)
    scores = unsmoothed.scores(above)
    return np.where(ranks.rank == 1, -np.inf, np.where(ranks.rank > 1, scores, np.inf))


def split_coverage(
    rows: TaskRows,
    *,
    alphas: Sequence[Level],
    rng: np.random.Generator,
    method: Method | None = None,
    strata: Strata | None = None,
    groups: Sequence[str] | None = None,
    splits: int = 20,
    share: float = 0.5,
    n_min: int = 100,
) -> Coverage:
    """Calibrate on a random share of the rows and count coverage on the rest, `splits` times.

    `strata` must fit the rows' cells; None ignores them (one pool for all). `groups` names the group of
    each row for the report (its cell by default).

    >>> rng = np.random.default_rng(0)
    >>> rows = TaskRows.of(["en/1-10"] * 400, -rng.exponential(size=400))
    >>> coverage = split_coverage(rows, alphas=["0.1"], rng=rng, splits=10)
    >>> coverage.groups, coverage.total[0].tolist(), round(float(coverage.mean[0, 0]), 1)
    (('en/1-10',), [200], 0.9)
    """
    if rows.unit is not None:
        raise InvalidArgument("expected tasks of one unit each, got units; leave the texts whole")
    count = len(rows)
    names, codes = _grouped(groups if groups is not None else rows.cells, count)
    calibration = _calibration_size(count, share)
    layout = NO_STRATA if strata is None else strata
    used = rows if strata is not None else rows.with_cells((WHOLE,) * count)
    shape = (splits, len(alphas), len(names))
    covered, unbounded = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    total, n = np.zeros((splits, len(names)), np.int64), np.zeros((splits, len(names)), np.int64)
    for split in range(splits):
        order = rng.permutation(count)
        test = order[calibration:]
        thresholds = calibrate(
            used.take(order[:calibration]), classes=("-",), method=method, strata=layout, n_min=n_min
        )
        part, at = used.take(test), codes[test]
        total[split] = np.bincount(at, minlength=len(names))
        for a, alpha in enumerate(alphas):
            answers = covers(thresholds, part, alpha)
            covered[split, a] = np.bincount(at[answers.covered], minlength=len(names))
            unbounded[split, a] = np.bincount(at[answers.open], minlength=len(names))
            n[split] = _common_size(at, answers, len(names))
    return Coverage(tuple(str(alpha) for alpha in alphas), names, covered, unbounded, total, n)


@dataclass(frozen=True, eq=False)
class EntityCoverage:
    """Coverage per class and "O": R splits, A levels, labels in columns.

    `by_task` averages over tasks first: a random entity of a random task that has one, which is what
    hierarchical thresholds promise. `by_entity` counts every entity alike. NaN where a label has no test row.
    """

    alphas: tuple[str, ...]
    labels: tuple[str, ...]
    by_task: Floats  # (R, A, W + 1)
    by_entity: Floats  # (R, A, W + 1)


def split_entity_coverage(
    rows: EntityRows,
    *,
    tasks: int,
    classes: Sequence[str],
    alphas: Sequence[Level],
    rng: np.random.Generator,
    method: EntityMethod | None = None,
    splits: int = 20,
    share: float = 0.5,
    n_min: int = 100,
) -> EntityCoverage:
    """Calibrate class thresholds on a random share of `tasks` (numbered from 0), and count on the others.

    Every true entity counts, also those whose span is no candidate (METHODS 6.5).
    """
    calibration = _calibration_size(tasks, share)
    chosen = method or EntityMethod()
    if chosen.needs_tuning:
        raise InvalidArgument(
            f"expected {chosen.name} with its tuned values, got none; see conformal.tuning.tune_spans"
        )
    labels = (*classes, "O")
    codes = np.array([labels.index(name) for name in rows.names], dtype=np.int64)[rows.codes]
    scores = chosen.scores(rows.scored, rank=rows.rank, outside=codes == len(classes))
    shape = (splits, len(alphas), len(labels))
    by_task, by_entity = np.full(shape, np.nan), np.full(shape, np.nan)
    nothing = TaskRows.of((), np.zeros(0))
    for split in range(splits):
        in_calibration = np.zeros(tasks, dtype=np.bool_)
        in_calibration[rng.permutation(tasks)[:calibration]] = True
        known = in_calibration[rows.task]
        thresholds = calibrate(
            nothing, rows.take(known), classes=classes, entity_method=chosen, n_min=n_min, allow_empty=True
        )
        for w, label in enumerate(labels):
            here = ~known & (codes == w)
            if not here.any():
                continue
            _, inverse, sizes = np.unique(rows.task[here], return_inverse=True, return_counts=True)
            weights = 1.0 / (sizes[inverse] * sizes.size)
            table = thresholds.label_pool(label).table
            for a, alpha in enumerate(alphas):
                hit = table.contains(scores[here], alpha)
                by_task[split, a, w] = weights[hit].sum()
                by_entity[split, a, w] = hit.mean()
    return EntityCoverage(tuple(str(alpha) for alpha in alphas), labels, by_task, by_entity)


def _calibration_size(count: int, share: float) -> int:
    if not 0.0 < share < 1.0:
        raise InvalidArgument(f"expected a calibration share strictly between 0 and 1, got {share}")
    size = round(count * share)
    if not 0 < size < count:
        raise EmptyCalibration(f"expected rows on both sides of the split, got {size} of {count} for calibration")
    return size


def _grouped(groups: Sequence[str], count: int) -> tuple[tuple[str, ...], Ints]:
    if len(groups) != count:
        raise InvalidArgument(f"expected one group per row ({count}), got {len(groups)}")
    return coded(groups)


def _common_size(codes: npt.NDArray[np.int64], answers: Answers, groups: int) -> Ints:
    """Return the n of the one pool that answered for all rows of a group, 0 where there were several."""
    result = np.zeros(groups, np.int64)
    for g in range(groups):
        here = codes == g
        if np.unique(answers.pool[here]).size == 1:
            result[g] = answers.n[here][0]
    return result
