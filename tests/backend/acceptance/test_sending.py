"""What the sender does with a task that is not any more what it was when it was accepted."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backend.acceptance.sending import Sender
from backend.domain.target import Shape, TextTag
from backend.jobs.context import WorkContext
from backend.labelstudio.client import LabelStudio
from backend.models.views import View
from backend.settings import Settings
from backend.store import Store
from backend.store.acceptance import SENT, act_on, count_accepted, record_acceptance
from backend.store.labels import current_label
from backend.store.projects import ensure_model, ensure_project, ensure_task
from tests.backend.intake.test_ingest import UID
from tests.backend.store.test_acceptance import DECISION

ACCOUNT = 9
PAGE = TextTag("page", "page", is_url=False, shape=Shape.PAGE)


def test_a_page_that_was_edited_after_it_was_accepted_stops_no_other(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    region = {
        "id": "r", "from_name": "label", "to_name": "page", "type": "hypertextlabels",
        "value": {"globalOffsets": {"start": 0, "end": 3}, "text": "Ann", "hypertextlabels": ["PER"]},
    }  # fmt: skip
    pages = {"1": "<p>Ann left", "2": "<p>Eve left</p>", "3": "<p>Ann left</p>"}
    with store.write() as session:
        project = ensure_project(session, UID)
        model = ensure_model(session, "m", "ab" * 32, classes=["PER"])
        tasks = {name: ensure_task(session, project.id, external_id=name, text="Ann left").id for name in pages}
        decision = record_acceptance(session, project.id, DECISION | {"number": 1, "model_id": model.id})
        planned = {number: f"{name}0000000-0000-4000-8000-000000000000" for name, number in tasks.items()}
        act_on(session, decision, tasks=planned, shadows=[], account=ACCOUNT)

    def pick(_: int, numbers: list[int]) -> list[dict[str, Any]]:
        made = {
            "result": [region],
            "completed_by": ACCOUNT,
            "parent_prediction": 5,
            "updated_at": "2026-01-01T00:00:00Z",
        }
        return [
            {"id": each, "data": {"page": pages[str(each)]}, "annotations": [made | {"id": 70 + each}]}
            for each in numbers
        ]  # fmt: skip

    context = SimpleNamespace(
        store=store, settings=Settings(), log=logging.getLogger("backend.test"), heartbeat=lambda **_: None
    )
    view = SimpleNamespace(target=SimpleNamespace(control="label", text=PAGE), model_version="m")
    sender = Sender(
        cast("WorkContext", context),
        cast("LabelStudio", SimpleNamespace(pick_tasks=pick)),
        project,
        decision,
        view=cast("View", view),
        account=ACCOUNT,
    )
    assert sender.send_page()
    assert not sender.send_page(), "nothing is left to send"
    with store.read() as session:
        assert list(count_accepted(session, project.id).values()) == [{SENT: 3}], "all can be taken back"
        found = [current_label(session, tasks[name]) for name in pages]
    assert [each is not None and each.exclusion for each in found] == [False, False, "accepted"]
    assert len([each for each in caplog.records if "does not fit" in each.message]) == 2
    assert "Ann" not in caplog.text
