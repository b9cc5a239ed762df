"""What prelabels saved: seconds of tasks drawn by lot to be blind or not, and what people did to what was served.

METHODS 14.2. Only first submissions count, under a random order and before anything was accepted; people and models
are compared with themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from sqlalchemy.orm import Session

from backend.acceptance.evidence import as_labels
from backend.domain.records import Draw, TextSpan
from backend.domain.streams import AUDIT, FILE_STREAM, UNSHOWN, OrderHistory, exclusion_of
from backend.domain.target import Target
from backend.store.packed_lists import unpack_ranked
from backend.store.worth import InView, Submission, first_submissions, in_view, load_lists
from conformal.estimates import IDLE_CAP, Edits, Saving, Trial, compare_spans, estimate_saving

MOST = 20_000  # submissions, the newest
PAGE = 500
PEOPLE = 20  # who submitted most are told apart
_OUTSIDE = {AUDIT, FILE_STREAM, UNSHOWN}


@dataclass
class Work:
    """What was submitted: the trial's columns, why others are not in it, and what became of served spans."""

    seconds: list[float] = field(default_factory=list)
    blind: list[bool] = field(default_factory=list)
    person: list[int | None] = field(default_factory=list)
    model: list[int] = field(default_factory=list)
    entities: list[int] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    skips: Counter[str] = field(default_factory=Counter)
    edits: dict[int | None, Edits] = field(default_factory=dict)
    untouched: Counter[int | None] = field(default_factory=Counter)
    served: Counter[int | None] = field(default_factory=Counter)  # tasks with a prelabel in view, by person

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def trial(self) -> Trial:
        """The columns; a block is one person under one model."""
        blocks = {key: place for place, key in enumerate(dict.fromkeys(self._keys()))}
        return Trial(
            np.array(self.seconds, dtype=np.float64),
            np.array(self.blind, dtype=bool),
            np.array([blocks[key] for key in self._keys()], dtype=np.int64),
            np.array(self.entities, dtype=np.int64),
        )

    def _keys(self) -> list[tuple[int | None, int]]:
        return list(zip(self.person, self.model, strict=True))


def read_work(
    session: Session,
    project_id: int,
    *,
    history: OrderHistory,
    target: Target,
    beat: Callable[[], object],
    most: int = MOST,
) -> Work:
    """Read the newest submissions; `beat` is called after each page."""
    work, before, read = Work(), 0, 0
    while read < most:
        page, end = first_submissions(session, project_id, before=before, limit=PAGE)
        if end is None:
            break
        before, read = end, read + PAGE
        _add(work, page, in_view(session, page), session=session, history=history, target=target)
        beat()
    return work


def _add(
    work: Work,
    page: Sequence[Submission],
    views: dict[int, InView],
    *,
    session: Session,
    history: OrderHistory,
    target: Target,
) -> None:
    shown = {
        each.id: views[each.id]
        for each in page
        if each.id in views and not views[each.id].shadow and views[each.id].shown > 0 and not _is_blind(each)
    }
    lists = load_lists(session, sorted({view.served_id for view in shown.values()}))
    for each in page:
        view = views.get(each.id)
        if each.id in shown and not each.skipped:
            ranked = unpack_ranked(lists[shown[each.id].served_id])
            edits = compare_spans(char_spans(as_labels(ranked.best, target)), char_spans(each.spans))
            work.edits[each.person] = work.edits.get(each.person, Edits()) + edits
            work.served[each.person] += 1
            work.untouched[each.person] += not edits.actions
        reason = _outside(each, view, history)
        arm = "blind" if _is_blind(each) else "assisted"
        if reason is None and each.skipped:
            work.skips[arm] += 1
            reason = "skipped"
        seconds = each.seconds if each.seconds is not None and each.seconds >= 0 else None  # a clock that was set back
        if reason is None and seconds is None:
            reason = "no time"
        if reason is not None or view is None or seconds is None:
            work.left_out[reason or "not served"] += 1
            continue
        work.seconds.append(seconds)
        work.blind.append(_is_blind(each))
        work.person.append(each.person)
        work.model.append(view.model_id)
        work.entities.append(len(each.spans))


def _is_blind(each: Submission) -> bool:
    return each.draw is not None and each.draw.blind


def _outside(each: Submission, view: InView | None, history: OrderHistory) -> str | None:
    """Say why a submission is not part of the trial, None where it is.

    Both arms are asked the same: by the time alone, never by the draw.
    """
    if each.draw is None or each.draw.stream in _OUTSIDE:
        return "not drawn"
    if view is None:
        return "not served"
    if view.shown == 0:
        return "nothing to show"
    even = Draw(each.draw.stream, each.draw.random_order, each.draw.selection_probability, blind=False)
    return None if exclusion_of(even, history, each.at) is None else "order"


def what_it_saved(work: Work, *, seed: int) -> dict[str, Any]:
    """Return the effect of prelabels on time, in total and by person, as JSON values."""
    trial = work.trial
    rng = np.random.default_rng(seed)
    people = Counter(work.person).most_common(PEOPLE)
    found = []
    for person, _ in people:
        mine = np.array([each == person for each in work.person], dtype=bool)
        saving = estimate_saving(trial.take(mine), rng=rng)
        if saving is not None:
            found.append({"person": person} | _said(saving))
    total = estimate_saving(trial, rng=rng) if len(trial) else None
    return {
        "submissions": len(work),
        "blind": int(trial.blind.sum()),
        "cap": IDLE_CAP,
        "capped": int(np.count_nonzero(trial.seconds > IDLE_CAP)),
        "total": None if total is None else _said(total),
        "people": found,
        "skipped": dict(work.skips),
        "left_out": dict(work.left_out),
    }


def what_was_done(work: Work) -> dict[str, Any]:
    """Return what became of the served spans, in total and by person, as JSON values."""
    order = [person for person, _ in work.served.most_common(PEOPLE)]
    total = sum(work.edits.values(), Edits())
    return {
        "tasks": sum(work.served.values()),
        "untouched": sum(work.untouched.values()),
        **asdict(total),
        "people": [
            {
                "person": person,
                "tasks": work.served[person],
                "untouched": work.untouched[person],
                **asdict(work.edits[person]),
            }
            for person in order
        ],
    }


def _said(saving: Saving) -> dict[str, Any]:
    return asdict(saving) | {"verdict": saving.verdict}


def char_spans(spans: Sequence[TextSpan]) -> list[tuple[int, int, str]]:
    """Return spans as estimates take them."""
    return [(span.start, span.end, span.label) for span in spans]
