"""A small life of a project: deliveries like Label Studio's, what processing makes of them, and a refit.

Imported by the tests and run as a program by them. As a program it reads commands from standard input and forks a
child for each: the children are real processes that the tests kill or run side by side, without paying for Python's
start and imports every time.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import signal
import sys
import traceback
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event as sa_event
from sqlalchemy.orm import Session

from backend.domain.records import (
    AnnotationRecord,
    EntityRow,
    ErrorRow,
    LabelChange,
    SequenceScores,
    TextSpan,
    ThresholdRow,
)
from backend.errors import LeaseLost
from backend.store import Store
from backend.store.bulk import load_scores
from backend.store.calibration import head_revision, load_cells, record_scores, recount_cells
from backend.store.events import EventOutcome, process_events, release_claims, store_event
from backend.store.jobs import acquire_job, enqueue_job, finish_job, heartbeat
from backend.store.labels import delete_annotation, delete_tasks, record_annotation, unscored_labels
from backend.store.projects import ensure_model, ensure_project, ensure_task
from backend.store.tables import (
    ActiveVersion,
    Annotation,
    CalibrationCell,
    CalibrationScore,
    EntityScore,
    Event,
    Job,
    Label,
    Model,
    Project,
    Task,
    Threshold,
    ThresholdVersion,
)
from backend.store.thresholds import write_version

START = datetime(2026, 1, 1, tzinfo=UTC)
REFITTING: list[bool] = []  # filled while a refit runs
STRATA = ("en/1-10", "de/1-10", "ru/11-20")


def moment(step: float) -> datetime:
    return START + timedelta(seconds=step)


def delivery(
    kind: str, step: int, *, task: int, annotation: int, text: str, labels: str, **more: Any
) -> dict[str, Any]:
    spans = [{"value": {"start": i, "end": i + 1, "labels": [label]}} for i, label in enumerate(labels.split())]
    return {
        "action": kind,
        "step": step,
        "annotation": {
            "id": annotation,
            "task": task,
            "result": spans,
            "updated_at": moment(step).isoformat(),
            "was_cancelled": False,
            "ground_truth": False,
            "completed_by": 1,
        }
        | more,
        "task": {"id": task, "data": {"text": text}, "created_at": moment(more.get("born", 0)).isoformat()},
        "project": {"id": 1, "token": "secret"},
    }


def make_deliveries(seed: int, tasks: int) -> list[dict[str, Any]]:
    """Annotations, second opinions, corrections, skips, bulk copies, deletions and unknown events, in true order."""
    draw = random.Random(seed)
    result: list[dict[str, Any]] = []
    annotation = 0
    for task in range(1, tasks + 1):
        text = f"text {task} {'word ' * (task % 7)}"
        for _ in range(draw.choice([1, 1, 1, 2, 3])):
            annotation += 1
            labels = draw.choice(["PER", "PER LOC", "LOC", ""])
            facts = {"was_cancelled": draw.random() < 0.1, "bulk_created": draw.random() < 0.1}
            common = {"task": task, "annotation": annotation, "text": text}
            result.append(delivery("ANNOTATION_CREATED", len(result) + 1, labels=labels, **common, **facts))
            if draw.random() < 0.3:
                labels = draw.choice(["ORG", "PER", "LOC PER"])
                result.append(delivery("ANNOTATION_UPDATED", len(result) + 1, labels=labels, **common))
            if draw.random() < 0.15:
                gone = {"action": "ANNOTATIONS_DELETED", "step": len(result) + 1, "annotations": [{"id": annotation}]}
                result.append(gone | {"project": {"id": 1}})
        if draw.random() < 0.05:
            gone = {"action": "TASKS_DELETED", "step": len(result) + 1, "tasks": [{"id": task}]}
            result.append(gone | {"project": {"id": 1}})
        if draw.random() < 0.05:
            result.append({"action": "SOMETHING_NEW", "step": len(result) + 1, "project": {"id": 1}})
    return result


def process(session: Session, event: Any) -> EventOutcome:
    """What ingest will do, with scores that are a function of text and spans."""
    body = event.payload
    project = ensure_project(session, "1.17")
    model = ensure_model(session, "toy", "ab" * 32, classes=["PER", "LOC", "ORG"])
    at = moment(body.get("step", 0))
    if body["action"] == "ANNOTATIONS_DELETED":
        changes = [
            change
            for each in body["annotations"]
            for change in delete_annotation(session, project.id, annotation_id=each["id"], at=at, event_id=event.id)
        ]
    elif body["action"] == "TASKS_DELETED":
        changes = delete_tasks(session, project.id, external_ids=[str(each["id"]) for each in body["tasks"]], at=at)
    elif body["action"] in {"ANNOTATION_CREATED", "ANNOTATION_UPDATED"}:
        told = body["annotation"]
        task = ensure_task(
            session,
            project.id,
            external_id=str(body["task"]["id"]),
            text=body["task"]["data"]["text"],
            created_at=datetime.fromisoformat(body["task"]["created_at"]),
        )
        record = AnnotationRecord(
            annotation_id=told["id"],
            updated_at=datetime.fromisoformat(told["updated_at"]),
            spans=tuple(
                TextSpan(each["value"]["start"], each["value"]["end"], each["value"]["labels"][0])
                for each in told["result"]
            ),
            was_cancelled=told["was_cancelled"],
            ground_truth=told["ground_truth"],
            bulk=told.get("bulk_created", False),
            completed_by=told["completed_by"],
        )
        changes = record_annotation(session, task.id, record, event_id=event.id)
    else:
        return EventOutcome.SKIPPED
    for change in changes:
        score(session, project.id, model.id, change)
    return EventOutcome.DONE


def score(session: Session, project_id: int, model_id: int, change: LabelChange) -> None:
    label = change.label
    if not change.changed or label is None or label.spans is None:
        return
    task = session.get_one(Task, label.task_id)
    digest = hashlib.sha256(f"{task.external_id}{task.text}{label.spans}".encode()).digest()
    unit = int.from_bytes(digest[:6], "big") / 2**48
    record_scores(
        session,
        project_id,
        model_id=model_id,
        task_id=label.task_id,
        label_revision=label.revision,
        stratum=STRATA[digest[6] % len(STRATA)],
        evidence="blind" if digest[7] % 2 else "assisted",
        exclusion=label.exclusion,
        scores=SequenceScores(
            nll=math.inf if digest[8] < 16 else -math.log(max(unit, 1e-12)),
            rank=float(1 + digest[9] % 20),
            cumulative=unit,
            entities=len(label.spans),
        ),
        entities=[EntityRow(*span, unit, unit, 1.0, float(1 + i)) for i, span in enumerate(label.spans)],
        errors=ErrorRow(len(label.spans), 1, missing=tuple(unit / (2 + i) for i in range(len(label.spans)))),
    )


def refit(store: Store, holder: str, lease: timedelta = timedelta(seconds=60)) -> int | None:
    """Fit on what counts now and activate, under a lease; None when another process holds the job."""
    with store.read() as session:
        project = session.execute(sa.select(Project.id)).scalar_one_or_none()
        model = session.execute(sa.select(Model.id)).scalar_one_or_none()
    if project is None or model is None:
        return None
    store.run(lambda session: enqueue_job(session, "refit", key="refit:1", project_id=project))
    job = store.run(lambda session: acquire_job(session, holder=holder, kinds=["refit"], lease=lease))
    if job is None:
        return None
    with store.read() as session:
        revision = head_revision(session, project, model_id=model)
        cells = load_cells(session, project, model_id=model)
        scores = load_scores(session, cells)
    store.run(lambda session: heartbeat(session, job, done=1, total=2, note="fitting", lease=lease))
    rows = [
        ThresholdRow(
            "pool", f"{cell.stratum}|{cell.evidence}", cell.n, cell.n_infinite, quantile(scores.nll[scores.rows(i)])
        )
        for i, cell in enumerate(cells)
    ]
    content = json.dumps([[row.pool, row.n, repr(row.tau)] for row in rows]).encode()

    def write(session: Session) -> int:
        version = write_version(
            session,
            project,
            model_id=model,
            alpha="0.1",
            method="nc1",
            evidence="all",
            guarantee="assisted",
            input_revision=revision,
            content=content,
            thresholds=rows,
        )
        finish_job(session, job, result={"version": version.id})
        return version.id

    return store.run(write)


def quantile(values: Any) -> float:
    k = math.ceil(0.9 * (len(values) + 1))
    return math.inf if k > len(values) else float(values[k - 1])


def snapshot(store: Store) -> dict[str, Any]:
    """Everything that must not depend on order, repetition or crashes; without ids and times of processing."""
    with store.read() as session:
        tasks = {
            row.id: (row.external_id, bytes(row.text_hash).hex()) for row in session.execute(sa.select(Task)).scalars()
        }
        labels = {
            tasks[row.task_id]: (row.spans, row.exclusion, row.votes, row.voters)
            for row in session.execute(sa.select(Label)).scalars()
        }
        annotations = {
            row.annotation_id: (tasks.get(row.task_id), row.updated_at, row.content_hash, row.deleted_at)
            for row in session.execute(sa.select(Annotation)).scalars()
        }
        cells = {
            row.id: (row.stratum, row.evidence, row.exclusion, row.n, row.n_infinite)
            for row in session.execute(sa.select(CalibrationCell)).scalars()
        }
        entities: dict[int, list[Any]] = {}
        for row in session.execute(sa.select(EntityScore)).scalars():
            entities.setdefault(row.score_id, []).append((row.start, row.end, row.label, row.probability, row.rank))
        live = session.execute(sa.select(CalibrationScore).where(CalibrationScore.removed_at_revision.is_(None)))
        scores = {
            tasks[row.task_id]: (
                cells[row.cell_id][:3],
                row.nll,
                row.rank,
                row.cumulative,
                sorted(entities.get(row.id, [])),
            )
            for row in live.scalars()
        }
    # A cell that is empty now may never have been used in another order of events.
    filled = sorted(cell for cell in cells.values() if cell[3] > 0)
    return {"labels": labels, "annotations": annotations, "scores": scores, "cells": filled}


def check_consistent(store: Store) -> None:
    """What must hold at any moment, also right after a kill."""
    with store.read() as session:
        if store.is_sqlite:
            assert session.execute(sa.text("PRAGMA integrity_check")).scalar_one() == "ok"
            assert session.execute(sa.text("PRAGMA foreign_key_check")).all() == []
        actives = session.execute(sa.select(ActiveVersion)).scalars().all()
        versions = session.execute(sa.select(ThresholdVersion)).scalars().all()
        assert len({(row.project_id, row.model_id) for row in actives}) == len(actives) <= 1
        assert bool(versions) == bool(actives)
        # Versions are activated by the transaction that writes them, so the newest is the active one.
        assert not versions or actives[0].version_id == max(row.id for row in versions)
        for row in versions:
            assert hashlib.sha256(bytes(row.content)).hexdigest() == row.content_hash
            summary = session.execute(sa.select(Threshold).where(Threshold.version_id == row.id)).scalars().all()
            assert len(summary) == row.pools == len(json.loads(row.content))
            # Any version can be rebuilt from the rows it saw.
            cells = load_cells(session, row.project_id, model_id=row.model_id)
            scores = load_scores(session, cells, at_revision=row.input_revision)
            rebuilt = {f"{cell.stratum}|{cell.evidence}": scores.nll[scores.rows(i)] for i, cell in enumerate(cells)}
            for each in summary:
                assert each.n == len(rebuilt[each.pool]), (row.id, each.pool)
                assert each.tau == quantile(rebuilt[each.pool]), (row.id, each.pool)
        done = session.execute(sa.select(Job).where(Job.state == "done")).scalars().all()
        assert sorted(job.result["version"] for job in done if job.result) == sorted(row.id for row in versions)
        running = session.execute(sa.select(Job).where(Job.state == "running")).scalars().all()
        assert len(running) <= 1
        for project_id, model_id in session.execute(
            sa.select(CalibrationCell.project_id, CalibrationCell.model_id).distinct()
        ).all():
            kept = {
                row.id: (row.n, row.n_infinite, row.tasks)
                for row in session.execute(sa.select(CalibrationCell)).scalars()
            }
            assert kept == recount_cells(session, project_id, model_id=model_id)
            # A label is scored in the transaction that changes it, never later.
            waiting = unscored_labels(session, project_id, model_id=model_id)
            assert [each.id for each in waiting if each.spans is not None] == []


def live(
    url: str, name: str, acks: str, first: int, deliveries: list[dict[str, Any]], kill_at: int | None, in_refit: bool
) -> None:
    """Deliver from `first` on, process and refit now and then, until everything is done or the process is killed."""
    store = Store(url)
    if kill_at is not None:
        _kill_after(store, kill_at, in_refit=in_refit)
    descriptor = os.open(acks, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    store.run(lambda session: release_claims(session, worker=name))
    for number in range(first, len(deliveries)):
        event_id = store_event(store, deliveries[number])
        os.write(descriptor, f"{number} {event_id}\n".encode())
        process_events(store, process, worker=name, limit=2)
        if number % 2 == 1:
            REFITTING.append(True)
            refit(store, name, lease=timedelta(milliseconds=1))
            REFITTING.clear()
    finish(store, name)  # also what rests after two kills
    store.run(_jobs_are_due)
    with suppress(LeaseLost):
        refit(store, name)
    store.close()


def ingest(url: str, name: str, deliveries: list[dict[str, Any]], lease: float) -> None:
    """Deliver all of these while processing whatever is there, beside other processes that do the same."""
    store = Store(url)
    for number, each in enumerate(deliveries):
        store_event(store, each)
        _process(store, name, lease, limit=1)
        if number % 10 == 9:
            with suppress(LeaseLost):
                refit(store, name)
    store.close()


def finish(store: Store, name: str) -> None:
    """Process until the inbox is empty, other processes' claims included once they end."""
    while True:
        _process(store, name, 60.0, limit=None)
        with store.read() as session:
            left = session.execute(sa.select(sa.func.count()).where(Event.state == "pending")).scalar_one()
        if not left:
            return
        store.run(_everything_is_due)


def _everything_is_due(session: Session) -> None:
    session.execute(sa.update(Event).where(Event.state == "pending").values(due_at=START))


def _jobs_are_due(session: Session) -> None:
    session.execute(sa.update(Job).where(Job.state == "queued").values(run_after=START))
    session.execute(sa.update(Job).where(Job.state == "running").values(lease_until=START))


def _process(store: Store, name: str, lease: float, limit: int | None) -> None:
    with suppress(LeaseLost):
        process_events(store, process, worker=name, limit=limit, lease=timedelta(seconds=lease))


def _kill_after(store: Store, statements: int, *, in_refit: bool) -> None:
    """Kill this process, as by kill -9, right before its n-th statement or commit (of refits only, if so asked)."""
    left = [statements]

    def count(*_: Any) -> None:
        left[0] -= bool(REFITTING) or not in_refit
        if left[0] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sa_event.listen(store.engine, "before_cursor_execute", count)
    sa_event.listen(store.engine, "commit", count)


def answer(content: dict[str, int]) -> None:
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Fork a child per command line; answer with its pid, then with how it ended."""
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "wait":
            _, status = os.waitpid(order["pid"], 0)
            answer({"pid": order["pid"], "status": os.waitstatus_to_exitcode(status)})
            continue
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                {"live": live, "ingest": ingest}[order["do"]](**order["with"])
                code = 0
            except Exception:  # noqa: BLE001 - the test sees the code only; why must be seen as well
                traceback.print_exc()
            finally:
                os._exit(code)
        answer({"pid": pid})


if __name__ == "__main__":
    main()
