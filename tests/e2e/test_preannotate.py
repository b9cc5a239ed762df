"""`surespan preannotate --project` on a real Label Studio: killed midway it goes on, and nothing is there twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from backend.demo.sample import sample_texts
from backend.labelstudio.client import LabelStudio
from backend.store import open_store
from backend.store.projects import find_project
from backend.store.tables import ServedSet, Task
from tests.support.end_to_end import ProjectFactory, ServiceFactory
from tests.support.label_studio import LabelStudioServer, Project, Service
from tests.support.waiting import wait_for


def numbered_texts(count: int) -> list[str]:
    """Different texts, made of the sample's."""
    texts = [each["text"] for each in sample_texts()]
    return [f"{texts[i % len(texts)]} ({i})" for i in range(count)]


class Runs:
    """`surespan preannotate` on one project with one database, run as often as a test likes."""

    def __init__(self, here: Service, project: Project, *options: str) -> None:
        self.here, self.project = here, project
        self.command = here.command("preannotate", "--project", str(project.id), "--json", *options)
        self.log = here.directory / "preannotate.log"

    def start(self) -> subprocess.Popen[bytes]:
        """Start it, as the leader of a group of processes."""
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self.command, env=self.here.environment, cwd=self.here.directory, stdout=subprocess.PIPE, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def kill_at(self, predictions: int) -> None:
        """Start it, and kill it (not its helpers) once the server has so many predictions."""
        run = self.start()
        try:
            wait_for(
                lambda: run.poll() is not None or self.stored() >= predictions,
                f"{predictions} predictions",
                seconds=1800,
                pause=0.02,
            )
            assert run.poll() is None, "it ended before it was killed"
        finally:
            os.kill(run.pid, signal.SIGKILL)
            run.communicate()
        group = run.pid
        wait_for(lambda: not _lives(group), "the helpers of a killed run end by themselves")

    def finish(self) -> dict[str, Any]:
        """Run it to its end and return what it says."""
        run = self.start()
        out, _ = run.communicate(timeout=3600)
        assert run.returncode == 0, self.log.read_text()
        return dict(json.loads(out))

    def stored(self) -> int:
        """Return how many predictions the server has."""
        return int(self.project.details["total_predictions_number"])

    def tasks(self) -> Iterator[dict[str, Any]]:
        """Yield the tasks as the server has them, with their predictions."""
        with LabelStudio(self.here.server.url, self.here.server.account.token) as client:
            for page in client.tasks_after(self.project.id, size=500):
                yield from page

    def check(self, version: str) -> int:
        """Everything is there, and once; what was stored is what was recorded as served. Returns the blank tasks."""
        blind: dict[str, bool] = {}
        served: Counter[tuple[str, bool]] = Counter()
        with open_store(self.here.database_url) as store, store.read() as session:
            found = find_project(session, self.project.uid)
            assert found is not None
            rows = session.execute(
                sa.select(Task.external_id, Task.blind, ServedSet.shadow)
                .join(ServedSet, ServedSet.task_id == Task.id)
                .where(Task.project_id == found.id)
            )
            for number, is_blind, shadow in rows:
                blind[number] = is_blind
                served[number, shadow] += 1
        seen = 0
        for task in self.tasks():
            names = [each["model_version"] for each in task["predictions"]]
            assert len(names) == len(set(names)), f"task {task['id']} has predictions twice: {names}"
            assert version in names, f"task {task['id']} has {names}"
            number = str(task["id"])
            assert served[number, blind[number]] >= 1
            assert not served[number, not blind[number]]
            if blind[number]:
                assert names == [version], "a blind task has one prediction"
                assert task["predictions"][0]["result"] == []
            seen += 1
        assert seen == len(self.project.tasks)
        assert self.project.details["model_version"] == version
        return sum(blind.values())


def _lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def patient(project: Project) -> Project:
    """The same project, for a caller who waits until Label Studio has fetched all predictions; close its client."""
    server = project.server
    client = httpx.Client(base_url=server.url, headers=dict(server.client.headers), timeout=1800.0, trust_env=False)
    return replace(project, server=replace(server, client=client))


def unstarted(label_studio: LabelStudioServer, tmp_path_factory: pytest.TempPathFactory) -> Service:
    """A service's database and settings, without the service."""
    directory = tmp_path_factory.mktemp("preannotate")
    return Service(directory, label_studio, api_key=label_studio.account.token, settings={})


def test_killed_midway_it_goes_on_and_nothing_is_there_twice(
    label_studio: LabelStudioServer, make_project: ProjectFactory, tmp_path_factory: pytest.TempPathFactory
) -> None:
    work = make_project(numbered_texts(80), title="Preannotated")
    runs = Runs(unstarted(label_studio, tmp_path_factory), work, "--jobs", "1", "--batch", "20")
    runs.kill_at(1)
    assert 0 < sum(bool(task["predictions"]) for task in runs.tasks()) < 80
    # As if Label Studio had fetched a task meanwhile, and the run that was killed had been cut off in the middle.
    first, second = work.tasks[:2]
    kept = label_studio.task(first)["predictions"]
    body = [{"task": first, **{key: each[key] for key in ("model_version", "score", "result")}} for each in kept]
    assert label_studio.call("POST", f"/api/projects/{work.id}/import/predictions", body)["created"] == len(kept)
    for each in label_studio.task(second)["predictions"]:
        if "#" not in each["model_version"]:
            label_studio.call("DELETE", f"/api/predictions/{each['id']}/")
    made = runs.finish()
    assert made["agrees"], made
    blank = runs.check(made["version"])
    assert blank == made["blank"] > 0
    before = {each["id"] for task in runs.tasks() for each in task["predictions"]}
    again = runs.finish()
    assert (again["predicted"], again["removed"], again["version"]) == (0, 0, made["version"])
    assert {each["id"] for task in runs.tasks() for each in task["predictions"]} == before


@pytest.mark.slow
def test_ten_thousand_tasks_killed_twice(
    label_studio: LabelStudioServer, make_project: ProjectFactory, tmp_path_factory: pytest.TempPathFactory
) -> None:
    count = 10_000
    texts = numbered_texts(count)
    work = make_project(texts[:1000], title="Ten thousand")
    for first in range(1000, count, 1000):
        work = Project(work.server, work.id, work.created_at, work.tasks + work.add(texts[first : first + 1000]))
    runs = Runs(unstarted(label_studio, tmp_path_factory), work, "--jobs", "2")
    begun = time.monotonic()
    for share in (0.25, 0.6):
        runs.kill_at(int(share * count * 2))  # a task has about two predictions and more
        print(f"killed at {runs.stored()} predictions after {time.monotonic() - begun:.0f} s", flush=True)
    made = runs.finish()
    took = time.monotonic() - begun
    print(json.dumps(made))
    blank = runs.check(made["version"])
    print(
        f"{count} tasks, killed twice: complete, no duplicates; {runs.stored()} predictions, {blank} tasks blank; "
        f"{took:.0f} s in all three runs, {count / took:.0f} tasks/s"
    )
    begun = time.monotonic()
    again = runs.finish()
    print(f"once more, nothing to do: {time.monotonic() - begun:.0f} s")
    assert (again["predicted"], again["removed"]) == (0, 0)


@pytest.mark.slow
def test_beside_a_service_and_while_label_studio_fetches(
    start_service: ServiceFactory, make_project: ProjectFactory
) -> None:
    """The service publishes on its own, Label Studio retrieves all predictions, and the command runs: no task twice."""
    here = start_service()
    work = make_project(numbered_texts(100), title="Beside a service")
    asked = ("--project", str(work.id), "--backend-url", here.url, "--sampling", "keep", "--yes", "--json")
    here.run("connect", *asked)  # queues a publication, which the service begins at once
    waiting = patient(work)
    fetching = threading.Thread(target=waiting.predict)
    fetching.start()
    runs = Runs(here, work, "--jobs", "1", "--batch", "50")
    runs.finish()
    fetching.join()
    waiting.server.client.close()
    made = runs.finish()  # what Label Studio stored after the last look is found now
    here.wait_for_jobs(work)
    assert made["agrees"], made
    runs.check(made["version"])
