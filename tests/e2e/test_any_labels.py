"""A project of a real Label Studio whose labels no model knows, from connecting to predictions of its own labels."""

from __future__ import annotations

import httpx
import pytest

from backend.labels.training_sets import read_project
from backend.store.labels import list_labels
from backend.store.projects import find_project
from tests.support.commands import surespan, surespan_json
from tests.support.end_to_end import ProjectFactory, ServiceFactory
from tests.support.label_studio import Project, Service
from tests.support.waiting import wait_for

CONFIG = (
    '<View><Labels name="label" toName="text"><Label value="Drug"/><Label value="Symptom"/></Labels>'
    '<Text name="text" value="$text"/></View>'
)
DRUGS = ["Aspirin", "Ibuprofen", "Metformin", "Warfarin", "Lisinopril"]
SYMPTOMS = ["nausea", "headache", "dizziness", "fever", "rash"]
FORMS = ["{0} caused {1} in two patients.", "After {0} the {1} went away.", "He takes {0} against {1}."]
PAIRS = [(drug, symptom) for drug in DRUGS for symptom in SYMPTOMS]
TEXTS = [FORMS[i % 3].format(*pair) for i, pair in enumerate(PAIRS)]


def regions(text: str, drug: str, symptom: str) -> list[dict[str, object]]:
    return [
        {
            "id": label,
            "from_name": "label",
            "to_name": "text",
            "type": "labels",
            "origin": "manual",
            "value": {"start": text.index(w), "end": text.index(w) + len(w), "text": w, "labels": [label]},
        }
        for w, label in ((drug, "Drug"), (symptom, "Symptom"))
    ]


def predictions(work: Project, prefix: str) -> list[list[dict[str, object]]] | None:
    """Return the newest predictions of every task once all of them are of this model."""
    tasks = [work.server.task(number) for number in work.tasks]
    newest = [[each for each in task["predictions"] if each["model_version"].startswith(prefix)] for task in tasks]
    return newest if all(newest) else None


def count_labels(running: Service, work: Project) -> int:
    with running.open_store() as store, store.read() as session:
        project = find_project(session, work.uid)
        return 0 if project is None else len(list_labels(session, project.id, limit=100))


@pytest.mark.heavy
def test_a_project_with_labels_of_its_own(start_service: ServiceFactory, make_project: ProjectFactory) -> None:
    running = start_service(SURESPAN_BLIND="0.2", SURESPAN_AT_WORK_MINUTES="0", SURESPAN_N_MIN="5")
    work = make_project(TEXTS, label_config=CONFIG)
    number = str(work.id)
    said = surespan(running, "connect", "--project", number, "--backend-url", running.url, "--yes")
    assert "Labels Drug, Symptom are not known to the model: tasks come blank. Label about twenty tasks" in said
    assert f"surespan train --project {number} --serve" in said

    running.wait_for_jobs(work)
    shown = wait_for(lambda: predictions(work, "blank@"), "every task has its empty prediction")
    assert all(each["result"] == [] for task in shown for each in task)
    for task, text, pair in zip(work.tasks[:22], TEXTS, PAIRS, strict=False):
        work.server.annotate(task, regions(text, *pair))
    wait_for(lambda: count_labels(running, work) == 22, "the labels are stored")

    labels = {each["check"]: each for each in surespan_json(running, "doctor", "--project", number)["findings"]}
    assert "tasks come blank" in labels["labels"]["found"]
    surespan(running, "queue", "--project", number)
    surespan(running, "sync", "--project", number)
    surespan(running, "preannotate", "--project", number)
    out = running.directory / "labels.jsonl"
    surespan(running, "export", "--project", number, "--output", str(out))
    assert len(out.read_text(encoding="utf-8").splitlines()) == 22
    page = httpx.get(
        f"{running.url}/dashboard/projects/{work.uid}", auth=(running.user, running.password), trust_env=False
    )
    assert page.status_code == 200
    assert "Labels Drug, Symptom are not known to the model" in page.text

    with running.open_store() as store:
        usable = read_project(store, number)
        assert set(usable.left_out) <= {"audit or blind: kept for calibration"}
        assert len(usable.texts) > 10
    model = running.directory / "model"
    surespan(running, "train", "--project", number, "--out", str(model), "--epochs", "8", "--patience", "8")
    assert running.stop() == 0
    running.environment["SURESPAN_MODEL"] = str(model)
    running.start()
    running.wait_for_jobs(work)
    work.predict()
    found = wait_for(lambda: predictions(work, "model@"), "every task has a prediction of the new model")
    names = {
        label
        for task in found
        for each in task
        for region in each["result"]  # type: ignore[attr-defined]
        if region["from_name"] == "label"
        for label in region["value"]["labels"]
    }
    assert names <= {"Drug", "Symptom"}
    changed = str(work.details["label_config"]).replace(
        '<Label value="Drug"', '<Label value="Dose"/><Label value="Drug"'
    )
    work.server.call("PATCH", f"/api/projects/{work.id}/", {"label_config": changed})
    work.predict(work.tasks[22:])
    (later,) = work.add(["Aspirin 5 mg against fever."])
    work.predict([later])
    assert wait_for(lambda: work.server.task(later)["predictions"], "a new task is predicted under the new config")
    assert running.call("POST", "/validate", {"config": changed})["unknown"] == ["Dose"]
