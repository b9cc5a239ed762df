"""What Label Studio really does, as far as reconciliation and publishing rely on it (docs/decisions/0008)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from backend.errors import LabelStudioError
from backend.labelstudio.client import LabelStudio, project_uid
from tests.support.end_to_end import ProjectFactory
from tests.support.label_studio import LabelStudioServer

BEGINNING = datetime(2000, 1, 1, tzinfo=UTC)
TEXTS = [f"Maria {i} lives in Paris." for i in range(7)]


@pytest.fixture
def client(label_studio: LabelStudioServer) -> Iterator[LabelStudio]:
    with LabelStudio(label_studio.url, label_studio.personal_token) as made:
        yield made


def test_the_uid_is_the_one_that_backends_are_told(client: LabelStudio, make_project: ProjectFactory) -> None:
    made = make_project()
    assert client.http.token_kind == "personal"
    assert project_uid(client.project(made.id)) == made.uid
    with pytest.raises(LabelStudioError, match="got 404"):
        client.project(999_999)


def test_pages_miss_nothing_and_repeat_nothing_while_people_work(
    client: LabelStudio, make_project: ProjectFactory
) -> None:
    made = make_project(TEXTS)
    seen: list[int] = []
    for page in client.tasks_after(made.id, size=2):
        seen += [int(task["id"]) for task in page]
        if len(seen) == 2:  # what was read vanishes, what was not changes
            made.server.call("DELETE", f"/api/tasks/{seen[0]}/")
            made.server.annotate(made.tasks[-1], [])
    assert seen == list(made.tasks)


def test_every_change_is_found_also_of_many_tasks_at_one_instant(
    client: LabelStudio, make_project: ProjectFactory
) -> None:
    made = make_project(TEXTS)
    assert (
        client.import_predictions(made.id, [{"task": t, "result": [], "model_version": "v"} for t in made.tasks]) == 7
    )
    chosen = {"all": False, "included": list(made.tasks[:5])}
    body = {"selectedItems": chosen, "project": made.id}
    made.server.call("POST", "/api/dm/actions/", body, id="predictions_to_annotations", project=made.id)
    tasks = client.pick_tasks(made.id, made.tasks)
    assert len({task["updated_at"] for task in tasks if task["id"] in made.tasks[:5]}) == 1
    found = [int(task["id"]) for page in client.changed_since(made.id, since=BEGINNING, size=2) for task in page]
    assert set(found) == set(made.tasks)
    first = max(task["updated_at"] for task in tasks)
    later = client.changed_since(made.id, since=datetime.fromisoformat(first), size=2)
    assert {int(task["id"]) for page in later for task in page} == set(made.tasks[:5])


def test_what_moves_the_time_of_a_task_and_what_does_not(client: LabelStudio, make_project: ProjectFactory) -> None:
    made = make_project(TEXTS[:1])
    (number,) = made.tasks

    def moment() -> str:
        (task,) = client.pick_tasks(made.id, [number])
        return str(task["updated_at"])

    call = made.server.call
    last = moment()
    annotation = made.server.annotate(number, [])
    for change in (
        lambda: None,  # the annotation that was just made
        lambda: call("PATCH", f"/api/annotations/{annotation['id']}/", {"lead_time": 9}),
        lambda: call("PATCH", f"/api/annotations/{annotation['id']}/", {"ground_truth": True}),
        lambda: call("PATCH", f"/api/tasks/{number}/", {"data": {"text": "Other."}}),
        lambda: call("DELETE", f"/api/annotations/{annotation['id']}/"),
    ):
        change()
        assert moment() > last
        last = moment()
    call("POST", f"/api/tasks/{number}/drafts", {"result": [], "lead_time": 1})
    client.import_predictions(made.id, [{"task": number, "result": [], "model_version": "v"}])
    assert moment() == last
    (task,) = client.pick_tasks(made.id, [number])
    assert task["draft_exists"] is True


def test_invalid_predictions_are_dropped_without_a_word(client: LabelStudio, make_project: ProjectFactory) -> None:
    made = make_project(TEXTS[:1])
    wrong = {"id": "x", "from_name": "no", "to_name": "text", "type": "labels", "value": {"start": 0, "end": 1}}
    good = {"task": made.tasks[0], "result": [], "model_version": "v"}
    assert client.import_predictions(made.id, [good | {"result": [wrong]}, good]) == 1


def test_an_annotation_whose_prediction_is_gone_is_refused(client: LabelStudio, make_project: ProjectFactory) -> None:
    """Why superseded predictions are not removed while somebody may have them open."""
    made = make_project(TEXTS[:1])
    client.import_predictions(made.id, [{"task": made.tasks[0], "result": [], "model_version": "v"}])
    (task,) = client.pick_tasks(made.id, made.tasks)
    shown = task["predictions"][0]["id"]
    client.delete_prediction(shown)
    body = {"result": [], "lead_time": 1.0, "parent_prediction": shown}
    answer = made.server.client.post(f"/api/tasks/{made.tasks[0]}/annotations/", json=body)
    assert answer.status_code == 400
    assert "parent_prediction" in answer.json()["validation_errors"]
