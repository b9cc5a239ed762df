"""A database as a project leaves it behind after some weeks, made with the store's own functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import numpy as np
import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.calibration.order import record_order
from backend.domain.ranked import Candidate, RankedList, one_unit
from backend.domain.records import (
    AnnotationRecord,
    Draw,
    MonitorRecord,
    ProjectRecord,
    SequenceScores,
    Served,
    TextSpan,
    ThresholdRow,
)
from backend.domain.streams import Order
from backend.store import Store
from backend.store.batches import NewTask, ensure_tasks
from backend.store.calibration import record_scores
from backend.store.events import store_event
from backend.store.jobs import acquire_job, enqueue_job, fail_job
from backend.store.judgements import Judged, JudgedRisk, record_judgement
from backend.store.labels import labels_of, record_annotation
from backend.store.monitor import raise_alarm, save_monitor
from backend.store.packed_lists import pack_ranked
from backend.store.projects import ensure_model, ensure_project
from backend.store.second_looks import ScoredLook, mark_looks, record_looks
from backend.store.served import record_served
from backend.store.state import SECOND_LOOKS, WORTH, set_state
from backend.store.tables import SecondLook
from backend.store.thresholds import write_version
from backend.tagger.identity import ModelHeader
from conformal.risk import RiskLevels, RiskPool
from conformal.rows import TaskRows
from conformal.thresholds import calibrate
from tests.support.worth_figures import figures

UID = "7.1760000000"
TITLE = 'Letters <b>& "papers"</b>'
CONFIG = (
    '<View><Labels name="label" toName="text"><Label value="PER"/><Label value="LOC"/></Labels>'
    '<Labels name="flag" toName="text"><Label value="Needs review"/></Labels><Text name="text" value="$text"/></View>'
)
STRATA = ("de/1-10", "en/1-10", "en/11-20", "de/21-30")
LIST = pack_ranked(
    one_unit(
        RankedList(
            ("LOC", "PER"),
            (math.log(0.6), math.log(0.3)),
            ((TextSpan(0, 1, "PER"),), ()),
            exhausted=True,
            candidates=(Candidate(0, 1, (0.3, 0.6)),),
        )
    )
)

# Labels have PER on the first character of "text 3" and the like.
EVIDENCE = {"word": [0, 1, 0.0004], "label": [[0, 1, "PER", 0.0004]], "model": [[0, 4, "LOC", 0.97]]}


def judged(task: int, project: int, model: int, *, number: int, version: int, day: date) -> Judged:
    """What a label said about a set: nine of ten sets hold it, a third of the tasks is blind."""
    blind = number % 3 == 0
    size = (1, 2, 1, None, 0, 1, 4)[number % 7]
    return Judged(
        task_id=task,
        model_id=model,
        project_id=project,
        label_revision=1,
        version_id=version,
        day=day,
        kind="blind" if blind else "assisted",
        stratum=STRATA[number % 4],
        pool="en/*",
        n=199,
        alpha="0.1",
        guarantee="own",
        covered=number % 10 != 0,
        shown=number % 10 not in {0, 1},
        accepted=number % (3 if blind else 10) != 0,
        is_open=size is None,
        size=size,
        classes={"PER": (2, 2 - (number % 9 == 0)), "LOC": (1, 1)},
        flags={"kept": 1, "relabelled": int(number % 4 == 0), "left": int(number % 5 == 0)},
        risk=JudgedRisk("en", 199, "own", "0.05", 0.5 if number % 30 == 0 else 0.0),
    )


def populate(
    store: Store,
    model_of: Callable[[ProjectRecord], ModelHeader],
    *,
    labels: int = 120,
    uid: str = UID,
) -> ProjectRecord:
    """Fill a database for one busy project and an empty one; returns the busy one.

    Args:
        model_of: says which model serves a project.
    """
    today = datetime.now(UTC).date()
    with store.write() as session:
        ensure_project(session, "8.1760000001", title="Nothing yet")
        project = ensure_project(session, uid, title=TITLE, label_config=CONFIG)
        header = model_of(project)
        model = ensure_model(session, header.name, header.hash, classes=header.classes)
        draws = [Draw("uniform", (i * 0.618) % 1, 1.0, blind=i % 3 == 0) for i in range(labels + 30)]
        fresh = [NewTask(str(1000 + i), f"text {i}", "de", 2, draw) for i, draw in enumerate(draws)]
        tasks = [kept.id for kept in ensure_tasks(session, project.id, fresh)]
        versions = [_version(session, project.id, model.id, rows=120 + 60 * i, tau=3.0 - 0.2 * i) for i in range(3)]
        for task in tasks[:labels]:
            record_annotation(session, task, AnnotationRecord(task, datetime.now(UTC), (TextSpan(0, 1, "PER"),)))
        revisions = labels_of(session, tasks[:labels])
        for i, task in enumerate(tasks[:labels]):
            record_scores(
                session, project.id, model_id=model.id, task_id=task, label_revision=revisions[task].revision,
                stratum=STRATA[i % 4], evidence="blind" if i % 3 == 0 else "assisted",
                scores=SequenceScores(0.5 + i % 5, 1.0 + i % 3, 0.6), exclusion="queue" if i % 11 == 0 else None,
            )  # fmt: skip
            day = today - timedelta(days=(labels - i) // 4)
            record_judgement(session, judged(task, project.id, model.id, number=i, version=versions[-1], day=day))
        shown = Served(tasks[labels], model.id, versions[-1], False, "de/1-10", "de/*", "own", 199, 2.6, False, 2, 2,
                       LIST, datetime.now(UTC), alpha="0.1")  # fmt: skip
        record_served(session, [replace(shown, task_id=task) for i, task in enumerate(tasks[labels:]) if i % 3])
        raise_alarm(
            session, project.id, model_id=model.id, kind="drift", stratum="", value=31.0, message="Texts have changed."
        )
        save_monitor(session, project.id, model_id=model.id, monitor=MonitorRecord("drift", "", 0, labels, 1.4, b"{}"))
        record_order(session, project.id, order=Order.UNIFORM, at=datetime.now(UTC), source="webhook")
        last = {"looked_at": 120, "annotations": 3, "finished_at": datetime.now(UTC).isoformat()}
        set_state(session, project.id, "sync", {"last": last, "total": {"looked_at": 900, "annotations": 7}, "runs": 8})
        set_state(session, project.id, WORTH, figures(model.id))
        set_state(session, project.id, "publish", {"last": {"agrees": True}})
        enqueue_job(session, "publish", key=f"publish:{uid}", project_id=project.id)
        _look_again(session, project.id, model.id, tasks[:3])
    with store.write() as session:
        job = acquire_job(session, holder="a test")
        assert job is not None
        fail_job(session, job, RuntimeError("Label Studio is away"))
    store_event(store, {"action": "ANNOTATION_CREATED", "project": {"id": 7}})
    return project


def _look_again(session: Session, project: int, model: int, tasks: list[int]) -> None:
    """Two labels are listed as probably wrong, one reference label is to be checked."""
    looks = [ScoredLook(task, 1, 7.8 - i, 0.5, 0.1, EVIDENCE) for i, task in enumerate(tasks)]
    record_looks(session, project, model_id=model, looks=looks)
    rows = session.execute(sa.select(SecondLook.task_id, SecondLook.id).where(SecondLook.task_id.in_(tasks)))
    of_task = {each.task_id: each.id for each in rows}
    first, second, third = (of_task[task] for task in tasks)
    mark_looks(session, project, model_id=model, listed={first: 1 / 37, second: 2 / 37}, check=[third])
    figures = {"fdr": "0.1", "reference": 36, "checked": 3, "tested": 84, "picked": 0, "listed": 2, "check": 1}
    at = datetime.now(UTC).isoformat()
    set_state(session, project, SECOND_LOOKS, {**figures, "inexpressible": 0, "model": model, "at": at})


def _version(session: Session, project: int, model: int, *, rows: int, tau: float) -> int:
    scores = TaskRows.of(["en/1-10"] * rows, np.log(np.linspace(0.2, 0.95, rows)))
    details = {
        "rows": rows,
        "guarantees": {"en/*": "own", "de/*": "none"},
        "gap": {"gap": None},
        "skips": {"unresolved": 3, "labelled": 97, "share": 0.03},
        "risk": RiskLevels(
            "0.05",
            False,
            100,
            (
                RiskPool("en", 0.125, rows, True, 0.045, 0.0625, ("en",), 0.125),
                RiskPool("others", 0.0, 9, False, 0.0, 0.5, ("de",), 0.0),
            ),
        ).to_dict(),
    }
    return write_version(
        session,
        project,
        model_id=model,
        alpha="0.1",
        method="nc1",
        evidence="blind",
        guarantee="own",
        input_revision=0,
        content=calibrate(scores, classes=["LOC", "PER"]).to_bytes(),
        thresholds=[
            ThresholdRow("pool", "en/*", rows, 1, tau),
            ThresholdRow("pool", "de/*", 9, 0, math.inf),
            ThresholdRow("class", "PER", rows, 0, 0.4),
        ],
        details=details,
    ).id
