"""Live coverage and the review queue, on both databases."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.orm import Session

from backend.store import Store
from backend.store.batches import NewTask, ensure_tasks
from backend.store.calibration import record_scores
from backend.store.labels import record_annotation
from backend.store.projects import ensure_model, ensure_project
from backend.store.ranked import Candidate, RankedList, pack_ranked
from backend.store.reports import QueuedTask, review_queue
from backend.store.served import record_served
from backend.store.types import AnnotationRecord, Draw, SequenceScores, Served

NOW = datetime.now(UTC)
BEFORE, LATER = NOW - timedelta(hours=1), NOW + timedelta(hours=1)


def served(task: int, model: int, *, tau: float, at: datetime = BEFORE, version: int | None = None, p: float = 0.5,
           stratum: str = "de/1-10", shadow: bool = False) -> Served:  # fmt: skip
    ranked = pack_ranked(RankedList(("PER",), (math.log(p),), ((),), exhausted=False))
    return Served(
        task, model, version, shadow, stratum, stratum, "own", 100, tau, math.isinf(tau),
        None if math.isinf(tau) else 1, 1, ranked, at,
    )  # fmt: skip


def label(session: Session, project: int, model: int, task: int, scores: SequenceScores) -> None:
    change = record_annotation(session, task, AnnotationRecord(task, NOW, ()))[0]
    assert change.label is not None
    record_scores(
        session, project, model_id=model, task_id=task, label_revision=change.label.revision, stratum="x",
        evidence="blind", scores=scores,
    )  # fmt: skip


def test_the_queue_has_what_is_left_to_do_least_certain_first(store: Store) -> None:
    with store.write() as session:
        project = ensure_project(session, "1.1").id
        model = ensure_model(session, "m", "ab", classes=["PER"]).id
        tasks = [NewTask(str(i), "a", draw=Draw("audit", 0.5, 0.1, blind=i == 3)) for i in range(5)]
        ids = [kept.id for kept in ensure_tasks(session, project, tasks)]
        record_served(
            session,
            [
                served(ids[0], model, tau=1.0, p=0.9),
                served(ids[0], model, tau=1.0, p=0.2),  # the last one counts
                served(ids[1], model, tau=1.0, p=0.1),
                served(ids[2], model, tau=math.inf, p=0.15),
                served(ids[3], model, tau=1.0, p=0.01, shadow=True),
            ],
        )
        label(session, project, model, ids[1], SequenceScores(0.0, 1, 0.1))
    with store.read() as session:
        queue = review_queue(session, project, model_id=model)
        assert [(each.task, round(each.probability, 9), each.set_size, each.is_open) for each in queue] == [
            ("2", 0.15, None, True),
            ("0", 0.2, 1, False),
        ]
        assert isinstance(queue[0], QueuedTask)
        assert len(review_queue(session, project, model_id=model, limit=1)) == 1
        assert review_queue(session, project, model_id=model + 1) == []


def test_expected_mistakes_move_a_task_up_and_an_empty_set_goes_first(store: Store) -> None:
    doubtful = RankedList(("PER",), (math.log(0.5),), ((),), exhausted=False, candidates=(Candidate(0, 3, (0.4,)),))
    with store.write() as session:
        project = ensure_project(session, "1.1").id
        model = ensure_model(session, "m", "ab", classes=["PER"]).id
        ids = [kept.id for kept in ensure_tasks(session, project, [NewTask(str(i), "a") for i in range(3)])]
        record_served(
            session,
            [
                served(ids[0], model, tau=1.0, p=0.4),
                replace(served(ids[1], model, tau=1.0), ranked=pack_ranked(doubtful)),
                replace(served(ids[2], model, tau=1.0, p=0.99), set_size=0),
            ],
        )
    with store.read() as session:
        queue = review_queue(session, project, model_id=model)
    assert [each.task for each in queue] == ["2", "1", "0"]
    assert queue[1].value == pytest.approx(math.log(2) + 0.4)
    assert queue[1].probability == pytest.approx(0.5)
