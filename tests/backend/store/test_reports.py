"""Live coverage and the review queue, on both databases."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from sqlalchemy.orm import Session

from backend.store import Store
from backend.store.batches import NewTask, ensure_tasks
from backend.store.calibration import record_scores
from backend.store.labels import record_annotation
from backend.store.projects import ensure_model, ensure_project
from backend.store.ranked import RankedList, pack_ranked
from backend.store.reports import QueuedTask, StratumCoverage, count_versions, live_coverage, review_queue
from backend.store.served import record_served
from backend.store.thresholds import write_version
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


def test_coverage_judges_the_last_set_before_the_label(store: Store) -> None:
    with store.write() as session:
        project = ensure_project(session, "1.1").id
        model = ensure_model(session, "m", "ab", classes=["PER"]).id
        ids = [kept.id for kept in ensure_tasks(session, project, [NewTask(str(i), "a") for i in range(8)])]
        version = write_version(
            session, project, model_id=model, alpha="0.1", method="nc3", evidence="blind", guarantee="own",
            input_revision=0, content=b"{}", thresholds=[],
        ).id  # fmt: skip
        record_served(
            session,
            [
                served(ids[0], model, tau=1.0),
                served(ids[0], model, tau=5.0, at=NOW - timedelta(minutes=1)),  # this one was in view
                served(ids[0], model, tau=0.0, at=LATER),  # and this one came after the label
                served(ids[1], model, tau=1.0),
                served(ids[2], model, tau=math.inf, stratum="fr/1-10"),
                served(ids[3], model, tau=2.0, version=version),  # by rank, as its version says
                served(ids[4], model, tau=1.0, at=LATER),  # nothing was served before its label
                served(ids[6], model, tau=1.0, shadow=True),
            ],
        )
        label(session, project, model, ids[0], SequenceScores(4.0, 9, 0.9))
        label(session, project, model, ids[1], SequenceScores(1.0 + 1e-9, 1, 0.1))
        label(session, project, model, ids[2], SequenceScores(math.inf, math.inf, math.inf))
        label(session, project, model, ids[3], SequenceScores(99.0, 2, 0.1))
        label(session, project, model, ids[4], SequenceScores(0.0, 1, 0.1))
        label(session, project, model, ids[5], SequenceScores(0.0, 1, 0.1))
        label(session, project, model, ids[6], SequenceScores(1.0, 1, 0.1))
    with store.read() as session:
        found = live_coverage(session, project, model_id=model, method="nc1")
        assert found == [StratumCoverage("de/1-10", 3, 4, 0), StratumCoverage("fr/1-10", 1, 1, 1)]
        assert live_coverage(session, project + 1, model_id=model, method="nc1") == []
        assert count_versions(session) == 1


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
