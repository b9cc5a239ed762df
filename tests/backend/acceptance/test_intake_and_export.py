"""What acceptance made is known whenever its webhook comes, stays so after an edit, and exports tell it apart."""

from __future__ import annotations

import itertools
import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from backend.acceptance.server import unique_id
from backend.domain.records import LabelRecord
from backend.intake.ingest import Ingest
from backend.labels.export import Format, export
from backend.labels.training_sets import unusable
from backend.store import Store
from backend.store.acceptance import PLANNED, SENT, act_on, count_accepted, record_acceptance
from backend.store.confirmed import EXCLUDE, INCLUDE, ONLY
from backend.store.events import process_events, store_events
from backend.store.labels import current_label
from backend.store.projects import ensure_model, ensure_project, ensure_task, load_tasks
from tests.backend.intake.test_ingest import MADE, UID, event
from tests.backend.store.test_acceptance import DECISION
from tests.support.payload_shapes import CONFIG, TEXTS

INGEST = Ingest(lambda *_: ("LOC", "MISC", "ORG", "PER"))
ACCOUNT = 9
UNIQUE = unique_id(UID, "4", 1)


def deliver(store: Store, *payloads: Any) -> None:
    store_events(store, payloads)
    while process_events(store, INGEST.process, worker="t"):
        pass


def at(minutes: int) -> str:
    moment: datetime = MADE + timedelta(minutes=minutes)
    return moment.isoformat().replace("+00:00", "Z")


def created(**more: Any) -> dict[str, Any]:
    given = {"unique_id": UNIQUE, "completed_by": ACCOUNT, "lead_time": None, "created_at": at(0), "updated_at": at(0)}
    body = event(number=70)
    body["annotation"] |= given | {"parent_prediction": 3} | more
    return body


def edited() -> dict[str, Any]:
    body = created(updated_at=at(30), lead_time=5.0, updated_by=2, result=[])
    return body | {"action": "ANNOTATION_UPDATED"}


def synced(body: dict[str, Any]) -> dict[str, Any]:
    """The same as reconciliation finds it: the server's API has no unique id."""
    bare = {name: value for name, value in body["annotation"].items() if name != "unique_id"}
    return body | {"annotation": bare, "surespan": {"source": "sync", "at": at(60)}}


@pytest.fixture
def task(store: Store) -> int:
    """A task that is planned and, for all that is known, not sent."""
    with store.write() as session:
        project = ensure_project(session, UID, label_config=CONFIG)
        model = ensure_model(session, "m", "ab" * 32, classes=["PER"])
        kept = ensure_task(session, project.id, external_id="4", text=TEXTS[0], created_at=MADE - timedelta(days=1))
        decision = record_acceptance(session, project.id, DECISION | {"number": 1, "model_id": model.id})
        act_on(session, decision, tasks={kept.id: UNIQUE}, shadows=[], account=ACCOUNT)
        return kept.id


def label(store: Store, task: int) -> LabelRecord:
    with store.read() as session:
        found = current_label(session, task)
    assert found is not None
    return found


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_events_in_any_order_leave_it_accepted(store: Store, task: int, order: tuple[int, ...]) -> None:
    events = [created(), edited(), synced(edited())]
    for place in order:
        deliver(store, events[place])
    found = label(store, task)
    assert found.exclusion == "accepted"
    assert found.annotation is not None
    assert found.annotation.lead_time == 5.0
    with store.read() as session:
        assert unusable(found, load_tasks(session, [task])[task]) == "accepted"


def test_before_its_number_is_known_reconciliation_knows_it_by_its_account(store: Store, task: int) -> None:
    deliver(store, synced(created()))
    assert label(store, task).exclusion == "accepted"
    deliver(store, synced(edited()))
    assert label(store, task).exclusion == "accepted"


def test_a_webhook_names_the_number_before_the_sender_has(store: Store, task: int) -> None:
    with store.read() as session:
        assert list(count_accepted(session, 1).values()) == [{PLANNED: 1}]
    deliver(store, created())
    with store.read() as session:
        assert list(count_accepted(session, 1).values()) == [{SENT: 1}]
    assert label(store, task).exclusion == "accepted"


def test_a_persons_own_annotation_beside_it_is_theirs(store: Store, task: int) -> None:
    deliver(store, created())
    own = event(number=71)
    own["annotation"] |= {"unique_id": "another", "completed_by": 2, "lead_time": 3.0, "updated_at": at(40)}
    deliver(store, own)
    found = label(store, task)
    assert found.exclusion is None
    assert found.annotation is not None
    assert found.annotation.annotation_id == 71


@pytest.mark.parametrize("form", list(Format))
def test_exports_leave_it_out_unless_asked_and_mark_it(store: Store, task: int, form: Format) -> None:
    deliver(store, created())
    confirmed = event(number=80, about=5)
    confirmed["annotation"] |= {"completed_by": 2, "lead_time": 3.0, "unique_id": "another"}
    deliver(store, confirmed)
    assert label(store, task).exclusion == "accepted"
    texts, marks = {}, {}
    with store.read() as session:
        project = ensure_project(session, UID)
        for choice in (EXCLUDE, INCLUDE, ONLY):
            lines, report = export(session, project, form=form, accepted=choice)
            written = "".join(lines)
            texts[choice], marks[choice] = report.texts, written.count("accepted")
            assert report.left_out.get("accepted", 0) == (1 if choice == EXCLUDE else 0)
            if form is not Format.CONLL:
                assert all(json.loads(line) for line in written.splitlines())
    assert texts == {EXCLUDE: 1, INCLUDE: 2, ONLY: 1}
    assert marks == {EXCLUDE: 0, INCLUDE: 1, ONLY: 1}
