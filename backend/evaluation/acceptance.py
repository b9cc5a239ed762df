"""What acceptance accepts and gets wrong on labelled files, in review order with annotators who stamp (METHODS 12).

Each draw is a project of all texts of a file. Tasks are drawn blind by the product's own hash and stand at random
places of the review order; of every other task the annotator confirms what the model says, right or wrong. Decisions
are made by the product's own code when their number of blind labels is reached, and acted on at once. The labels of the
file say what was truly wrong. Beside it stands what would happen if stamped labels, made in random order so that
nothing else is wrong with them, were taken for evidence too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from backend.acceptance.decision import Wish, choose, stand
from backend.acceptance.evidence import Rows
from backend.domain.priority import priority_of
from backend.domain.records import AcceptanceRecord
from backend.domain.streams import Order, draw_task, uniforms
from backend.evaluation.risk_lists import Lists, list_texts
from backend.review.blind_priorities import blind_priority
from backend.tagger.errors import InvalidData
from backend.tagger.readers import LabelledText
from backend.tagger.tagger import Tagger
from conformal.quantile import Bools, Floats
from conformal.risk import fit_levels
from conformal.risk.acceptance import Promise, spend, within_bound

MAX_ERRORS = ("0.05", "0.02", "0.01")
LABELS = (125, 250, 500)  # blind labels at which the project is looked at
BLIND = 600  # tasks drawn blind, about, where a file has enough for that
MOST_BLIND = 0.6  # of all tasks
FLAG_ERROR = "0.05"  # what flags promise: only tasks without one are accepted
_PROJECT = "study"
_LEAST = 50

Ints = npt.NDArray[np.int64]
Figures = dict[str, float]


@dataclass(frozen=True, eq=False)
class Collection:
    """All tasks of a file: the model's doubt, what accepting would lose, and what the queue orders by, (T,) each.

    `shares` says that losses are shares because some text has several units.
    """

    doubts: Floats
    losses: Floats
    values: Floats
    shares: bool
    flag_at: Callable[[Ints], Bools]

    @classmethod
    def of(cls, lists: Lists) -> Collection:
        """Return what acceptance sees of decoded texts."""
        rows = lists.error_rows(lists.doubts)
        left = rows.losses(np.inf)
        losses = np.where(lists.units <= 1, (left > 0).astype(np.float64), left)
        highest = np.zeros(len(lists))
        np.maximum.at(highest, lists.listed.task, lists.doubts)

        def flag_at(labelled: Ints) -> Bools:
            """Return which tasks have a flag when these have calibrated them."""
            pool = fit_levels(rows.take(labelled), ["-"] * labelled.size, max_error=FLAG_ERROR).pool("-")
            flagged: Bools = highest >= pool.level
            return flagged

        return cls(lists.doubt, losses, lists.value, bool((lists.units > 1).any()), flag_at)

    def __len__(self) -> int:
        return int(self.doubts.size)


@dataclass(frozen=True, eq=False)
class Work:
    """One draw: the tasks in the order in which people come to them, and in random order; which are blind (T,)."""

    order: Ints
    shuffled: Ints
    blind: Bools


def evaluate_acceptance(
    tagger: Tagger,
    texts: Sequence[LabelledText],
    *,
    draws: int = 200,
    seed: int = 0,
    progress: Callable[[int], object] | None = None,
) -> dict[str, Any]:
    """Return the figures of one file; raises `InvalidData` when it has too few texts the model does not know."""
    lists = list_texts(tagger, texts, progress=progress)
    if len(lists) < _LEAST:
        raise InvalidData(
            f"expected at least {_LEAST} labelled texts that are not empty and that the model was not trained on, got "
            f"{len(lists)} of {len(texts)}; give data that were kept apart when the model was trained"
        )
    return study_collection(Collection.of(lists), draws=draws, seed=seed)


def study_collection(
    tasks: Collection, *, draws: int, seed: int, max_errors: Sequence[str] = MAX_ERRORS
) -> dict[str, Any]:
    """Return the figures of a collection: means over draws, and in how many of them more than eps was wrong."""
    share = min(MOST_BLIND, BLIND / len(tasks))
    wishes = [Wish(eps, promise) for promise in Promise for eps in max_errors]
    found: dict[Wish, list[tuple[Figures, Figures]]] = {wish: [] for wish in wishes}
    for draw in range(draws):
        work = draw_work(tasks, salt=f"{seed}.{draw}", share=share)
        blind = work.order[work.blind[work.order]]  # (blind,) in the order in which their labels come
        stamped = np.where(work.blind, tasks.losses, 0.0)  # (T,) what a label that was confirmed unread shows
        flags = {k: tasks.flag_at(blind[:k]) for k in LABELS if k <= blind.size}
        for wish in wishes:
            kept = decide_all(tasks, blind, tasks.losses, wish=wish)
            misled = decide_all(tasks, work.shuffled, stamped, wish=wish)
            honest = _figures(tasks, kept, wish) | _effort(tasks, work, blind, kept, flags)
            found[wish].append((honest, _figures(tasks, misled, wish)))
    return {
        "tasks": len(tasks),
        "draws": draws,
        "blind": share,
        "wrong": float((tasks.losses > 0).mean()),
        "loss": float(tasks.losses.mean()),
        "shares": tasks.shares,
        "wishes": [_summary(tasks, wish, found[wish]) for wish in wishes],
    }


def draw_work(tasks: Collection, *, salt: str, share: float) -> Work:
    """Draw blind tasks and put all into review order; blind ones stand at a random quantile of the others."""
    names = [str(number) for number in range(len(tasks))]
    blind = np.array(
        [draw_task(salt, _PROJECT, each, order=Order.REVIEW, audit_share=share, blind=share).blind for each in names]
    )
    priorities = np.array([priority_of(value, first=False) for value in tasks.values.tolist()])
    others = np.sort(priorities[~blind]).tolist()
    for at in np.flatnonzero(blind).tolist():
        priorities[at] = blind_priority(uniforms(salt, _PROJECT, names[at]).v, others)
    positions = np.array([uniforms(salt, _PROJECT, each).position for each in names])
    return Work(np.lexsort((positions, priorities)), np.argsort(positions), blind)


@dataclass(frozen=True)
class Made:
    """A decision, the labels it rests on, what earlier ones had lost on them, and up to which doubt it accepts."""

    number: int
    rows: Rows
    level: float | None


def decide_all(tasks: Collection, labelled: Ints, losses: Floats, *, wish: Wish) -> list[Made]:
    """Make every decision that falls due while labels come, and act on each.

    labelled: tasks in the order of their labels. losses (T,): what their labels show, were the task accepted.
    """
    records: list[AcceptanceRecord] = []
    made: list[Made] = []
    lost = np.zeros(len(tasks))  # by decisions so far
    for labels in LABELS:
        standing = stand(records, wish, model_id=1, labels=min(labels, labelled.size))
        if standing.count is None:
            continue
        used = labelled[: standing.count]
        rows = Rows((), tasks.doubts[used], losses[used], lost[used], tasks.shares)
        number = len(records) + 1
        choice = choose(rows, tasks.doubts, wish=wish, number=number)
        records.append(_record(wish, number, labels=choice.labels, level=choice.level))
        made.append(Made(number, rows, choice.level))
        if choice.level is not None:
            lost = np.maximum(lost, np.where(tasks.doubts <= choice.level, losses, 0.0))
    return made


def permitted_level(tasks: Collection, made: Made, *, wish: Wish) -> float:
    """Return the greatest doubt at which the same labels keep the bound, each tested by itself; -inf for none.

    No promise could be made with it (for B it is the best of many tests), so it says what a sequence of tests costs.
    """
    order = np.argsort(made.rows.doubts, kind="stable")
    levels = np.unique(tasks.doubts)
    below = np.searchsorted(made.rows.doubts[order], levels, side="right")
    earlier = made.rows.earlier if wish.promise is Promise.ALL else np.zeros(order.size)
    more = np.append(0.0, np.cumsum(np.maximum(made.rows.losses - earlier, 0.0)[order]))
    return _greatest(levels, earlier.sum() + more[below], below, made, wish=wish, binary=not tasks.shares)


def curve_level(tasks: Collection, made: Made, *, wish: Wish) -> float:
    """Return the greatest doubt that the bound would allow if the labels showed the true error curve itself."""
    order = np.argsort(tasks.doubts, kind="stable")
    levels = np.unique(tasks.doubts)
    below = np.searchsorted(tasks.doubts[order], levels, side="right")
    true = np.append(0.0, np.cumsum(tasks.losses[order]))[below]
    part = made.rows.doubts.size / len(tasks)
    expected = np.floor(true * part + 1e-9) if not tasks.shares else true * part
    return _greatest(levels, expected, np.rint(below * part), made, wish=wish, binary=not tasks.shares)


def oracle_share(tasks: Collection, wish: Wish) -> float:
    """Return the share of tasks that could be accepted by who knows the true error curve."""
    order = np.argsort(tasks.doubts, kind="stable")
    levels = np.unique(tasks.doubts)
    below = np.searchsorted(tasks.doubts[order], levels, side="right")
    true = np.append(0.0, np.cumsum(tasks.losses[order]))[below]
    good = true / (len(tasks) if wish.promise is Promise.ALL else below) <= wish.share
    return float(below[good].max(initial=0) / len(tasks))


def _greatest(levels: Floats, sums: Floats, below: npt.NDArray[Any], made: Made, *, wish: Wish, binary: bool) -> float:
    whole = np.full(below.size, made.rows.doubts.size)
    totals = whole if wish.promise is Promise.ALL else below.astype(np.int64)
    passed = within_bound(sums, totals, max_error=wish.share, delta=spend(made.number), binary=binary)
    return float(levels[passed].max(initial=-np.inf))


def _figures(tasks: Collection, made: Sequence[Made], wish: Wish) -> Figures:
    """Return what decisions accept, were every task still there, and what of it is truly wrong."""
    levels = [each.level for each in made if each.level is not None]
    inside = tasks.doubts <= max(levels, default=-np.inf)
    wrong = float(np.where(inside, tasks.losses, 0.0).mean())
    single = [float(tasks.losses[tasks.doubts <= level].mean()) for level in levels]
    exceeded = wrong > wish.share if wish.promise is Promise.ALL else any(each > wish.share for each in single)
    return {
        "share": float(inside.mean()),
        "of all": wrong,
        "of accepted": max(single, default=np.nan),
        "exceeded": float(exceeded),
        "permitted": _share_below(tasks, [permitted_level(tasks, each, wish=wish) for each in made]),
        "curve": _share_below(tasks, [curve_level(tasks, each, wish=wish) for each in made]),
    }


def _effort(tasks: Collection, work: Work, blind: Ints, made: Sequence[Made], flags: dict[int, Bools]) -> Figures:
    """Return what is accepted in truth: no blind task, none with a flag, none that people had come to before."""
    place = np.empty(len(tasks), np.int64)
    place[work.order] = np.arange(len(tasks))
    unflagged = np.zeros(len(tasks), np.bool_)
    unopened = np.zeros(len(tasks), np.bool_)
    for each in made:
        if each.level is None:
            continue
        count = each.rows.doubts.size
        free = (tasks.doubts <= each.level) & ~flags[count]
        unflagged |= free
        unopened |= free & ~work.blind & (place > place[blind[count - 1]])
    return {"unflagged": float(unflagged.mean()), "unopened": float(unopened.mean())}


def _share_below(tasks: Collection, levels: Sequence[float]) -> float:
    return float((tasks.doubts <= max(levels, default=-np.inf)).mean())


def _summary(tasks: Collection, wish: Wish, found: Sequence[tuple[Figures, Figures]]) -> dict[str, Any]:
    kept, misled = (_means([pair[which] for pair in found]) for which in (0, 1))
    ratios = {name: kept["share"] / kept[name] if kept[name] else None for name in ("permitted", "curve")}
    return {
        "of": wish.promise.value,
        "max_error": wish.max_error,
        **kept,
        "of permitted": ratios["permitted"],
        "of curve": ratios["curve"],
        "oracle": oracle_share(tasks, wish),
        "stamped": {name: misled[name] for name in ("share", "of all", "of accepted", "exceeded")},
    }


def _means(figures: Sequence[Figures]) -> dict[str, Any]:
    """Return the mean over draws; of the accepted over those that accept anything, None without one."""
    result: dict[str, Any] = {}
    for name in figures[0]:
        values = np.array([each[name] for each in figures])
        known = values[~np.isnan(values)]
        result[name] = float(known.mean()) if known.size else None
    return result


_MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
_RECORD = AcceptanceRecord(
    id=0,
    project_id=0,
    number=0,
    model_id=1,
    version_id=None,
    promise="",
    max_error="",
    delta=0.0,
    labels=0,
    tasks=0,
    level=None,
    share=0.0,
    below=0,
    lost=0.0,
    bound=1.0,
    why="",
    decided_at=_MOMENT,
    decided_by="",
)


def _record(wish: Wish, number: int, *, labels: int, level: float | None) -> AcceptanceRecord:
    promised = {"promise": wish.promise.value, "max_error": wish.max_error}
    return replace(_RECORD, id=number, number=number, labels=labels, level=level, **promised)  # type: ignore[arg-type]
