"""What was given up: named without any of a text, and tried again in one project or in all."""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa

from backend.domain.records import AnnotationRecord
from backend.store import Store
from backend.store.aside import Aside, list_aside, retry_aside
from backend.store.attempts import DEATHS, begin_attempts, set_aside
from backend.store.events import EventOutcome, inbox_depth, process_events, store_events
from backend.store.jobs import acquire_job, enqueue_job, fail_job, list_jobs
from backend.store.labels import list_labels, record_annotation, unscored_labels
from backend.store.projects import ensure_model, ensure_project, ensure_task, find_project
from backend.store.tables import Event, ScoringAttempt
from tests.support.payload_shapes import annotation, project_object, task

SECRET = "Anna met Bob"


def refuse(*_: object) -> EventOutcome:
    raise ValueError(f"cannot be read: {SECRET}")


def give_up(store: Store, number: int, *, labels: int = 1, reason: str = f"KeyError: {SECRET}") -> int:
    """Let an event, labels and a job of a project fail for good; returns the model's id."""
    about = {"annotation": annotation(1), "task": task(1, SECRET), "project": project_object(number)}
    store_events(store, [{"action": "ANNOTATION_CREATED"} | about])
    process_events(store, refuse, worker="w", hopeless=(ValueError,))
    with store.write() as session:
        project = ensure_project(session, f"{number}.1790000000")
        model = ensure_model(session, "m", "ab" * 32, classes=["PER"])
        for place in range(labels):
            made = ensure_task(session, project.id, external_id=str(place), text=f"{SECRET} {place}")
            record_annotation(session, made.id, AnnotationRecord(place, datetime(2026, 1, 1, tzinfo=UTC), ()))
        given = list_labels(session, project.id)
        set_aside(session, project.id, model_id=model.id, labels=given, reason=reason)
        enqueue_job(session, "refit", key=f"refit:{number}", project_id=project.id)
        job = acquire_job(session, holder="w")
        assert job is not None
        fail_job(session, job, RuntimeError(f"no refit: {SECRET}"))
    return model.id


def listed(store: Store) -> list[Aside]:
    with store.read() as session:
        return list_aside(session)


def counts(store: Store) -> dict[str, int]:
    return {each.kind: each.count for each in listed(store)}


def retried(store: Store, key: str | None = None) -> dict[str, int]:
    return store.run(lambda session: retry_aside(session, project_key=key))


def test_nothing_was_given_up(store: Store) -> None:
    assert listed(store) == [Aside("event", 0, ()), Aside("label", 0, ()), Aside("job", 0, ())]
    assert retried(store) == retried(store, "7") == {"event": 0, "label": 0, "job": 0}


def test_each_kind_is_counted_and_its_reasons_are_named_without_the_text(store: Store) -> None:
    give_up(store, 7, labels=30)
    give_up(store, 8, reason="the text has more than 9 characters (SURESPAN_MAX_TEXT): it is never predicted")
    assert listed(store) == [
        Aside("event", 2, ("ANNOTATION_CREATED (ValueError)",)),
        # Of the first twenty, by project: more are counted, not read.
        Aside("label", 31, ("KeyError",)),
        Aside("job", 2, ("refit (RuntimeError)",)),
    ]
    assert retried(store, "7")["label"] == 30
    assert listed(store)[1] == Aside("label", 1, ("the text has more than 9 characters (SURESPAN_MAX_TEXT)",))
    assert SECRET not in str(listed(store))


def test_what_has_no_reason_is_unknown(store: Store) -> None:
    give_up(store, 7)
    with store.write() as session:
        session.execute(sa.update(Event).values(error=None))
        session.execute(sa.update(ScoringAttempt).values(error=None))
    assert [each.reasons for each in listed(store)[:2]] == [("ANNOTATION_CREATED (unknown)",), ("unknown",)]


def test_one_project_is_tried_again_and_the_other_is_left(store: Store) -> None:
    model = give_up(store, 7, labels=2)
    give_up(store, 8, labels=3)
    assert retried(store, "9") == {"event": 0, "label": 0, "job": 0}, "nobody knows that project"
    assert counts(store) == {"event": 2, "label": 5, "job": 2}
    assert retried(store, "8") == {"event": 1, "label": 3, "job": 1}
    assert counts(store) == {"event": 1, "label": 2, "job": 1}
    with store.read() as session:
        assert inbox_depth(session) == {"pending": 1, "dead": 1}
        assert sorted((job.key, job.state) for job in list_jobs(session)) == [
            ("refit:7", "failed"),
            ("refit:8", "queued"),
        ]
        for key, waiting in (("7", 0), ("8", 3)):
            project = find_project(session, key)
            assert project is not None
            found = unscored_labels(session, project.id, model_id=model, after=0, limit=10)
            assert len(found) == waiting, "they count as never tried"
    assert retried(store, "8") == {"event": 0, "label": 0, "job": 0}, "what waits is not given up"


def test_all_projects_are_tried_again(store: Store) -> None:
    give_up(store, 7)
    give_up(store, 8)
    assert retried(store) == {"event": 2, "label": 2, "job": 2}
    assert counts(store) == {"event": 0, "label": 0, "job": 0}
    with store.read() as session:
        assert inbox_depth(session) == {"pending": 2, "dead": 0}
        assert {job.state for job in list_jobs(session)} == {"queued"}


def test_events_of_a_project_that_never_came_to_be_are_tried_again(store: Store) -> None:
    store_events(store, [{"action": "PROJECT_UPDATED", "project": project_object(12)}])
    process_events(store, refuse, worker="w", hopeless=(ValueError,))
    with store.read() as session:
        assert find_project(session, "12") is None
    assert retried(store, "12") == {"event": 1, "label": 0, "job": 0}


def test_labels_that_are_only_being_tried_are_not_given_up(store: Store) -> None:
    model = give_up(store, 7)
    retried(store)
    with store.write() as session:
        project = find_project(session, "7")
        assert project is not None
        given = list_labels(session, project.id)
        for _ in range(DEATHS):
            begin_attempts(session, project.id, model_id=model, labels=given)
    assert counts(store)["label"] == 0
    assert retried(store)["label"] == 0
