"""A real Label Studio gives out its tasks in the order of the queue: by the stream, and by the tab "Review first"."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.test_connect import REGION, TEXTS, predicted
from tests.support.commands import surespan, surespan_json
from tests.support.end_to_end import ProjectFactory, ServiceFactory
from tests.support.label_studio import Project, Service
from tests.support.waiting import wait_for

MANY = [f"{text} {ending}" for text in TEXTS for ending in ("", "So it was said in Ulm.", "Nobody knew why, or how.")]


@pytest.fixture(scope="module")
def running(start_service: ServiceFactory) -> Service:
    return start_service(SURESPAN_AUDIT_SHARE="0.4", SURESPAN_AT_WORK_MINUTES="0", SURESPAN_REFIT_EVERY_LABELS="1000")


@pytest.fixture(scope="module")
def work(running: Service, make_project: ProjectFactory) -> Project:
    made = make_project(MANY, sampling="Uncertainty sampling")
    surespan_json(running, "connect", "--project", str(made.id), "--yes", "--sampling", "keep")
    predicted(made)
    return made


def queue(running: Service, work: Project) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = running.call("GET", f"/api/v1/queue?project={work.uid}&limit=500")["tasks"]
    return found


def scores(work: Project) -> dict[str, float]:
    """The Data Manager's score of each task: what the server orders by."""
    return {str(task["id"]): task["predictions_score"] for task in predicted(work)}


def test_tab_and_queue_are_in_one_order_and_audit_tasks_among_them_say_nothing(running: Service, work: Project) -> None:
    known = scores(work)
    waiting = queue(running, work)
    assert {each["task"] for each in waiting} == set(known)
    assert [known[each["task"]] for each in waiting] == pytest.approx(sorted(known.values()), abs=1e-12)
    views = work.server.call("GET", "/api/dm/views/", project=work.id)
    (tab,) = [each["id"] for each in views if each["data"]["title"] == "Review first"]
    listed = work.server.call("GET", "/api/tasks/", view=tab, project=work.id, page_size=100)["tasks"]
    assert [known[str(task["id"])] for task in listed] == sorted(known.values())
    blind = [each for each in waiting if each["blind"]]
    assert 0 < len(blind) < len(waiting)
    for each in blind:
        assert {name for name, value in each.items() if value is not None} == {"task", "blind"}
        assert work.server.task(int(each["task"]))["predictions"][0]["result"] == []
    shown = [each["value"] for each in waiting if not each["blind"] and not each["open"] and each["set_size"]]
    assert shown == sorted(shown, reverse=True)


def test_the_stream_follows_the_queue_and_labels_leave_it(running: Service, work: Project) -> None:
    known = scores(work)
    for place in range(3):
        given = work.server.call("GET", f"/api/projects/{work.id}/next/")
        left = [each["task"] for each in queue(running, work)]
        assert len(left) == len(MANY) - place
        # Two tasks may have one score: a blind one stands exactly where a shown one does.
        assert known[str(given["id"])] == pytest.approx(known[left[0]], abs=1e-12)
        work.server.annotate(given["id"], [REGION])

        def gone(task: str = str(given["id"])) -> bool:
            return task not in {each["task"] for each in queue(running, work)}

        wait_for(gone, "the labelled task has left the queue")


def test_scripts_lease_what_the_queue_holds(running: Service, work: Project) -> None:
    number = str(work.id)
    lease = ("queue", "--project", number, "--limit", "2", "--minutes", "30", "--claim")
    ann, bob = ([each["task"] for each in surespan_json(running, *lease, who)["tasks"]] for who in ("ann", "bob"))
    assert len({*ann, *bob}) == 4
    left = [each["task"] for each in queue(running, work)]
    assert not {*ann, *bob} & set(left)
    assert "audit, shown blank" in surespan(running, "queue", "--project", number, "--limit", "500")
    assert surespan(running, "queue", "--project", number, "--release", "ann") == "2 released.\n"
    assert {each["task"] for each in queue(running, work)} == {*left, *ann}
