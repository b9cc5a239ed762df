"""All full-sequence methods over random splits of decoded texts (METHODS 9).

A tuning part is drawn once and never used again; each split halves the rest into calibration and test. Everything is
decided by the seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from backend.evaluation.decoding import DETAILED, LISTED, Decoded
from conformal.evaluation import Outcomes, cut_points, head_sizes, within
from conformal.labels import OUTSIDE
from conformal.quantile import Floats, ScoreTable
from conformal.rows import EntityRows, TaskRows, coded
from conformal.scores import METHODS, Boundary, Method, Ranks, Tuned
from conformal.strata import WHOLE, Strata
from conformal.subsequence import Ints
from conformal.thresholds import Thresholds, calibrate
from conformal.tuning import RankedLists, tune

# Every full-sequence method with a score of its own; the paper's integrated sets are judged by `paper_sets`.
COMPARED = {name: worth for name, worth in METHODS.items() if worth != "heuristic"}
LEVELS = ("0.2", "0.1", "0.05", "0.025", "0.01")
TUNING_SHARE = 0.2
NO_STRATA = Strata(by_language=False, lengths=())
_TUNING_LISTS = 2000  # tuning tasks whose lists the grid search looks at


@dataclass(frozen=True, eq=False)
class Study:
    """Decoded texts as rows and lists, with the tuning part set aside."""

    decoded: Decoded
    seed: int = 0
    tuning_share: float = TUNING_SHARE

    @cached_property
    def strata(self) -> Strata:
        """Identified language x length bin."""
        return Strata()

    @cached_property
    def kept(self) -> Ints:
        """Tasks that can be evidence: not empty, and not among the texts the model was trained on.

        Both are strata of their own in the product and speak for no other text (METHODS 1).
        """
        return np.flatnonzero((self.decoded["task.length"] > 0) & ~self.seen)

    @cached_property
    def seen(self) -> npt.NDArray[np.bool_]:
        """Whether the model was trained on the text of each task; an empty one counts as empty."""
        return np.asarray(self.decoded["task.seen"] & (self.decoded["task.length"] > 0), dtype=np.bool_)

    @cached_property
    def cells(self) -> tuple[str, ...]:
        """The stratum of each task."""
        d = self.decoded
        return tuple(
            self.strata.cell(length=length, language=d.languages[code])
            for length, code in zip(d["task.length"].tolist(), d["task.language"].tolist(), strict=True)
        )

    @cached_property
    def cell_codes(self) -> tuple[tuple[str, ...], Ints]:
        """The strata that occur, and each task's among them."""
        return coded(self.cells)

    def codes_of(self, tasks: Ints, *, strata: bool) -> tuple[list[str], Ints]:
        """Return the strata of some tasks (one for all of them without strata), and each task's among them."""
        if not strata:
            return [WHOLE], np.zeros(tasks.size, np.int64)
        names, every = self.cell_codes
        used, codes = np.unique(every[tasks], return_inverse=True)
        return [names[i] for i in used.tolist()], codes.ravel()

    @cached_property
    def rows(self) -> TaskRows:
        """Where each truth stands."""
        d = self.decoded
        rng = np.random.default_rng([self.seed, 1])
        return TaskRows.of(
            self.cells,
            d["task.log_probability"],
            rank=d["task.rank"],
            cumulative=d["task.cumulative"],
            previous=d["task.previous"],
            mass=self.mass,
            u=rng.random(len(d)),
        )

    @cached_property
    def entities(self) -> EntityRows:
        """Every true entity, and every candidate span that is none."""
        d = self.decoded
        labels = (*d.classes, OUTSIDE)
        return EntityRows.of(
            d["entity.task"],
            [labels[i] for i in d["entity.label"].tolist()],
            probability=d["entity.probability"],
            cumulative=d["entity.cumulative"],
            class_rank=d["entity.place"],
            rank=d["entity.rank"],
        )

    @cached_property
    def logs(self) -> npt.NDArray[np.float32]:
        """Log-probabilities of the listed labelings: (T, LISTED)."""
        return np.asarray(self.decoded["list.log_probability"], np.float32)

    @cached_property
    def cumulative(self) -> Floats:
        """Cumulative probabilities of the listed labelings: (T, LISTED)."""
        result = np.empty(self.logs.shape)
        for first in range(0, len(result), 4096):  # a part at a time: the whole twice over would be too much memory
            part = slice(first, first + 4096)
            np.cumsum(np.exp(self.logs[part], dtype=np.float64), axis=1, out=result[part])
        return result

    @cached_property
    def mass(self) -> Floats:
        """Probability of the DETAILED best labelings together: the paper divides by it (METHODS 2.4)."""
        return np.asarray(self.cumulative[:, DETAILED - 1])

    @cached_property
    def counts(self) -> Ints:
        """Number of labelings listed for each task."""
        return np.asarray(np.isfinite(self.logs).sum(axis=1), dtype=np.int64)

    @cached_property
    def tuning(self) -> Ints:
        """Tasks of the tuning part, in order."""
        order = np.random.default_rng([self.seed, 2]).permutation(self.kept)
        return np.sort(order[: round(order.size * self.tuning_share)])

    @cached_property
    def rest(self) -> Ints:
        """Tasks that are split into calibration and test."""
        return np.setdiff1d(self.kept, self.tuning)

    def split(self, number: int) -> tuple[Ints, Ints]:
        """Return the calibration and the test tasks of one split."""
        order = np.random.default_rng([self.seed, 3, number]).permutation(self.rest)
        half = order.size // 2
        return np.sort(order[:half]), np.sort(order[half:])

    def tuned(self, name: str, alpha: str, *, limit: int | None = None, strata: bool = True) -> Method:
        """Freeze a method on the tuning part, for small sets at level alpha."""
        plain = Method(name)
        method = Method(name, limit=limit if plain.needs_rank and not plain.goes_on else None)
        own = self.entities.take(np.isin(self.entities.task, self.tuning))
        lists = None
        part = self.tuning
        if method.searches_lists:
            part = part[:: max(1, part.size // _TUNING_LISTS)]
            lists = RankedLists(self.logs[part].astype(np.float64), self.decoded["task.complete"][part])
        rows = self.rows.take(part)
        return tune(
            method,
            rows,
            classes=self.decoded.classes,
            entities=own,
            lists=lists,
            strata=self.strata if strata else None,
            alpha=alpha,
        )

    def truth_rows(self, method: Method) -> TaskRows:
        """Return the rows, with T of the true labelings where the method needs it."""
        return method.describe(self.rows, self.entities)

    def thresholds(self, method: Method, rows: TaskRows, calibration: Ints, *, strata: bool) -> Thresholds:
        """Calibrate a tuned method on some tasks."""
        used = rows.take(calibration)
        if not strata:
            used = used.with_cells((WHOLE,) * len(used))
        layout = self.strata if strata else NO_STRATA
        return calibrate(
            used,
            self.entities if method.is_integrated else None,
            classes=self.decoded.classes,
            method=method,
            strata=layout,
            allow_empty=True,
        )

    def listed_worst(self, tuned: Tuned) -> Floats:
        """Return T of the DETAILED best labelings of every task: (T, DETAILED), `+inf` beyond the list."""
        d = self.decoded
        terms = np.zeros(len(d["part.class"]), np.float32)
        with np.errstate(divide="ignore"):
            scores = -np.log(d["part.probability"])
        for w, name in enumerate(d.classes):
            here = d["part.class"] == w
            terms[here] = tuned.part(name)(scores[here])
        worst = self.fold_parts(terms)
        left = d["labeling.left_out"]
        worst = np.maximum(worst, np.where(left > 0, tuned.part(OUTSIDE)(left), 0.0))
        beyond = np.arange(DETAILED) >= d["labeling.listed"][:, None]
        return np.where(beyond, np.inf, worst)

    def fold_parts(self, values: npt.NDArray[np.float32], *, only: npt.NDArray[np.bool_] | None = None) -> Floats:
        """Return the largest value among the parts of each labeling, 0 where it has none: (T, DETAILED).

        `only` leaves out parts, for instance those of other classes.
        """
        d = self.decoded
        counts = d["labeling.count"].astype(np.int64).ravel()
        used = values if only is None else np.where(only, values, np.float32(0.0))
        result = np.zeros(counts.size)
        some = np.flatnonzero(counts)
        if some.size:
            ends = np.cumsum(counts)
            result[some] = np.maximum.reduceat(used[d["held.part"]], (ends - counts)[some])
        return result.reshape(d["labeling.count"].shape)


@dataclass(frozen=True, eq=False)
class Listed:
    """What is known of sets that are looked at among the DETAILED best labelings only (integrated ones).

    A whole set may hold labelings beyond them. `covered`: the truth is a member and listed. `may_go_on`: nothing that
    is stored rules out a member beyond the list.
    """

    covered: npt.NDArray[np.bool_]  # (T,)
    size: Ints  # (T,) members among the listed labelings
    may_go_on: npt.NDArray[np.bool_]  # (T,)


@dataclass(frozen=True, eq=False)
class Judged:
    """The sets of one method, level and split: test tasks and what became of them.

    `outcomes` are of whole sets; `listed` is given where only a part of each was looked at.
    """

    test: Ints
    outcomes: Outcomes
    listed: Listed | None = None


def judge_heads(
    study: Study, method: Method, rows: TaskRows, thresholds: Thresholds, test: Ints, alpha: str, *, strata: bool
) -> Judged:
    """Judge sets that are heads of ranked lists: sizes by bisection on the lists."""
    names, codes = study.codes_of(test, strata=strata)
    tables = [thresholds.pool(name).table for name in names]
    u = rows.u[test] if rows.u is not None else None
    plain = replace(method, boundary=Boundary.INCLUDE)
    by_cut = method.boundary is Boundary.INCLUDE or method.smooths_scores
    cuts = np.array([cut_points(table, alpha) for table in tables])[codes] if by_cut else np.zeros((0, 1))

    def contains(ranks: Ranks, at_rows: Ints, before: Floats | None = None) -> npt.NDArray[np.bool_]:
        draws = None if u is None else u[at_rows]
        scores = method.scores(ranks, u=draws if method.smooths_scores else None)
        if by_cut:
            return within(scores, cuts[at_rows])
        members = np.zeros(at_rows.size, dtype=np.bool_)
        for i, table in enumerate(tables):
            here = codes[at_rows] == i
            members[here] = method.members(
                scores[here],
                table,
                alpha,
                previous=None if before is None else before[here],
                u=None if draws is None or not method.needs_u else draws[here],
            )
        return members

    def at(at_rows: Ints, rank: Ints) -> Ranks:
        tasks = test[at_rows]
        logs = study.logs[tasks, rank - 1].astype(np.float64)
        return Ranks(logs, rank, study.cumulative[tasks, rank - 1], study.mass[tasks])

    needs_previous = method.boundary in (Boundary.FULL, Boundary.PAPER)

    def inside(at_rows: Ints, rank: Ints) -> npt.NDArray[np.bool_]:
        before = None
        if needs_previous:
            before = np.where(rank > 1, plain.scores(at(at_rows, np.maximum(rank - 1, 1))), -np.inf)
        return contains(at(at_rows, rank), at_rows, before)

    sizes = head_sizes(inside, study.counts[test])
    own = rows.take(test)
    truth = own.ranks
    truth_before = None
    if needs_previous:
        above = Ranks(
            own.previous if own.previous is not None else truth.log_probability,
            np.maximum(truth.rank - 1, 0),
            truth.cumulative - np.exp(truth.log_probability),
            truth.mass,
        )
        truth_before = np.where(truth.rank == 1, -np.inf, np.where(truth.rank > 1, plain.scores(above), np.inf))
    covered = contains(truth, np.arange(test.size), truth_before)
    unbounded = np.array([_open(table, alpha, method) for table in tables])[codes]
    # A set that holds a whole unfinished list goes on: it is at least this large, and not counted as closed.
    full = (sizes >= LISTED) & ~study.decoded["task.complete"][test]
    if not method.goes_on and method.limit is not None:
        full &= sizes < method.limit
    return Judged(test, Outcomes(covered, sizes, unbounded | full, np.where(covered, truth.rank, 0)))


def _open(table: ScoreTable, alpha: str, method: Method) -> bool:
    return bool(np.isposinf(table.threshold(alpha))) and not method.needs_u


def judge_integrated(
    study: Study,
    method: Method,
    rows: TaskRows,
    thresholds: Thresholds,
    test: Ints,
    alpha: str,
    *,
    scores: Floats,
    strata: bool,
) -> Judged:
    """Judge calibrated integrated sets; `scores` (T, DETAILED) are those of the listed labelings.

    Coverage is that of the whole set, which may reach beyond the DETAILED best labelings; members are counted among
    these only. A set is open if its threshold is infinite or if it is known to reach beyond them, because it holds a
    truth that ranks there. `Judged.listed` has the coverage and size of the listed part, which is what the paper's
    integrated sets are.
    """
    own = method.scores(rows.take(test).ranks)
    names, codes = study.codes_of(test, strata=strata)
    taus = np.array([thresholds.pool(name).table.threshold(alpha) for name in names])[codes]
    covered = own <= taus
    members = scores[test] <= taus[:, None]
    members &= np.arange(DETAILED) < study.decoded["labeling.listed"][test][:, None]
    rank = study.decoded["task.rank"][test].astype(np.int64)
    here = (rank > 0) & (rank <= DETAILED)
    at = np.clip(rank - 1, 0, DETAILED - 1)[:, None]
    inside = covered & here
    # Listed probabilities are rounded, the truth's own is not.
    members[np.flatnonzero(here), rank[here] - 1] = covered[here]
    place = np.where(inside, np.maximum(np.take_along_axis(members.cumsum(axis=1), at, 1)[:, 0], 1), 0)
    size = members.sum(axis=1).astype(np.int64)
    more = study.counts[test] > DETAILED
    # The least score that a labeling beyond the list can have: no part of it strange, its probability that of the
    # first one there. Parts alone ("integrated") do not bound it.
    logs = study.logs[test, DETAILED].astype(np.float64) + 1e-5  # they are rounded
    nothing = np.zeros(test.size)
    least = method.scores(Ranks(logs, np.zeros(test.size, np.int64), nothing, None, nothing))
    unbounded = np.isposinf(taus)
    beyond = covered & ~here
    listed = Listed(inside, size, unbounded | beyond | (more & (least <= taus)))
    return Judged(test, Outcomes(covered, size, unbounded | beyond, place), listed)


def run_method(
    study: Study,
    name: str,
    *,
    splits: int,
    strata: bool,
    alphas: Sequence[str] = LEVELS,
    boundary: Boundary = Boundary.INCLUDE,
    top_k: int | None = None,
) -> Iterator[tuple[str, int, Judged, Thresholds]]:
    """Judge a method at every level over the splits: yields (alpha, split, sets, thresholds).

    `top_k` is the paper's convention: probabilities over the K best, whatever ranks beyond is out of reach.
    """
    for alpha in alphas:
        method = replace(study.tuned(name, alpha, limit=LISTED, strata=strata), boundary=boundary, top_k=top_k)
        rows = study.truth_rows(method)
        scores = None
        if method.is_integrated and method.tuned is not None:
            worst = study.listed_worst(method.tuned)
            logs = study.logs[:, :DETAILED].astype(np.float64)
            scores = method.scores(Ranks(logs, np.zeros(logs.shape, np.int64), np.zeros(logs.shape), None, worst))
        for split in range(splits):
            calibration, test = study.split(split)
            thresholds = study.thresholds(method, rows, calibration, strata=strata)
            if scores is not None:
                yield (
                    alpha,
                    split,
                    judge_integrated(study, method, rows, thresholds, test, alpha, scores=scores, strata=strata),
                    thresholds,
                )
            else:
                yield alpha, split, judge_heads(study, method, rows, thresholds, test, alpha, strata=strata), thresholds
