"""`surespan demo` as a newcomer runs it: it stands, it stops, and it goes on where it stopped."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from backend.demo.install import ENVIRONMENT, label_studio_command
from backend.demo.processes import free_port, is_free
from tests.support.label_studio import ROOT, missing
from tests.support.waiting import wait_for

READY = "What to look at"
SECONDS = 300.0
# How somebody may label the notes from the kitchen.
KITCHEN = re.compile(
    r"""\b(?:(?P<Dish>onion.soup|apple.cake|fried.rice|potato.salad|pancakes|risotto|goulash|omelette|crumble)
    |(?P<Tool>bowl|(?:frying.)?pan|grater|whisk|saucepan|knife|(?:wooden.)?spoon|sieve|spatula|fork|lid|oven)
    |(?P<Ingredient>eggs?|butter|onions?|cheese|garlic|cream|stock|tomatoes|flour|sugar|potatoes|salt|carrots?|rice
    |pepper|oil|apples|milk|lemon))\b""",
    re.IGNORECASE | re.VERBOSE,
)


class Demo(NamedTuple):
    """A demo with its ports and directory."""

    directory: Path
    port: int
    backend_port: int

    def command(self, *more: str) -> list[str]:
        place = ["--directory", str(self.directory), "--port", str(self.port), "--backend-port", str(self.backend_port)]
        return [sys.executable, "-m", "backend", "demo", *place, *more]

    def notes(self) -> dict[str, Any]:
        return dict(json.loads((self.directory / "demo.json").read_text(encoding="utf-8")))

    def api(self, path: str, body: Any = None, **params: Any) -> Any:
        """Call Label Studio: GET, or POST with a body."""
        headers = {"Authorization": f"Token {self.notes()['token']}"}
        url, method = f"http://127.0.0.1:{self.port}{path}", "GET" if body is None else "POST"
        answer = httpx.request(method, url, headers=headers, params=params, json=body, timeout=60.0, trust_env=False)
        return answer.raise_for_status().json()

    def label(self, task: dict[str, Any]) -> None:
        """Label a note from the kitchen, as its editor would."""
        text = task["data"]["text"]
        found = [
            {
                "id": f"r{match.start()}",
                "from_name": "label",
                "to_name": "text",
                "type": "labels",
                "origin": "manual",
                "value": {"start": match.start(), "end": match.end(), "text": match[0], "labels": [match.lastgroup]},
            }
            for match in KITCHEN.finditer(text)
        ]
        self.api(f"/api/tasks/{task['id']}/annotations/", {"result": found, "lead_time": 1.0})

    def own_labels(self) -> set[str]:
        """The labels in predictions that a model of the kitchen's own has made for tasks that nobody has labelled."""
        tasks = self.api("/api/tasks/", project=self.notes()["kitchen"], page_size=200, fields="all")["tasks"]
        made = [each for task in tasks if not task["total_annotations"] for each in task["predictions"]]
        regions = [region for each in made if each["model_version"].startswith("project-") for region in each["result"]]
        return {label for region in regions if region["from_name"] == "label" for label in region["value"]["labels"]}


@contextmanager
def running(demo: Demo, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the demo until it says that everything stands; it is stopped on leaving."""
    with log.open("wb") as stream:
        process = subprocess.Popen(demo.command(), cwd=ROOT, stdout=stream, stderr=stream, stdin=subprocess.DEVNULL)

    def stands() -> bool:
        assert process.poll() is None, log.read_text(encoding="utf-8")
        return READY in log.read_text(encoding="utf-8")

    try:
        wait_for(stands, "the demo stands", seconds=SECONDS)
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(timeout=60)


def children_of(pid: int) -> list[int]:
    """All processes below one."""
    direct = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()]
    return direct + [below for child in direct for below in children_of(child)]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    if label_studio_command(ROOT / ENVIRONMENT) is None:
        missing("Label Studio", "run `surespan demo --install-only`, or `make test`")
    return Demo(tmp_path_factory.mktemp("demo"), free_port(), free_port())


def test_the_demo_stands_stops_and_goes_on(demo: Demo, tmp_path: Path) -> None:
    with running(demo, tmp_path / "first.log") as process:
        said = (tmp_path / "first.log").read_text(encoding="utf-8")
        notes = demo.notes()
        assert f"http://127.0.0.1:{demo.port}/projects/{notes['project']}/data" in said
        assert notes["password"] in said
        assert "added the flag control" in said

        tasks = demo.api("/api/tasks/", project=notes["project"], page_size=200, fields="all")["tasks"]
        assert {task["data"]["language"] for task in tasks} == {"de", "en", "es", "fr", "it", "nl", "pl", "pt", "ru"}
        versions = [[each["model_version"] for each in task["predictions"]] for task in tasks]
        assert all(versions), "every task has predictions"
        assert all(len(set(each)) == len(each) for each in versions), "none has them twice"
        assert sum(len(each) > 1 for each in versions) > 20, "many have further labelings"
        results = [region for task in tasks for each in task["predictions"] for region in each["result"]]
        assert sum(region["from_name"] == "flag" for region in results) > 20, "many spans are marked"
        project = demo.api(f"/api/projects/{notes['project']}/")
        assert project["sampling"] == "Uniform sampling"
        assert project["model_version"].endswith("+cal.0")

        assert f"http://127.0.0.1:{demo.port}/projects/{notes['kitchen']}/data" in said
        kitchen = demo.api("/api/tasks/", project=notes["kitchen"], page_size=200, fields="all")["tasks"]
        shown = [each for task in kitchen for each in task["predictions"]]
        assert len(shown) == len(kitchen)
        assert not any(each["result"] for each in shown), "all are blank"
        for task in kitchen[: len(kitchen) * 2 // 3]:
            demo.label(task)
        wait_for(
            lambda: demo.own_labels() == {"Ingredient", "Tool", "Dish"}, "open tasks come with the labels of their own"
        )

        again = subprocess.run(demo.command("--once"), cwd=ROOT, capture_output=True, text=True, check=False)
        assert again.returncode == 1
        assert f"process {process.pid}" in again.stderr

        below = children_of(process.pid)
        assert len(below) >= 3  # Label Studio, the service and its worker process
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
        assert not [pid for pid in below if Path(f"/proc/{pid}").exists()]
        assert is_free(demo.port)
        assert is_free(demo.backend_port)

    environment = os.environ | {"COLUMNS": "200"}
    second = subprocess.run(
        demo.command("--once"), cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS
    )
    assert second.returncode == 0, second.stdout + second.stderr
    assert "nothing was changed" in second.stdout
    assert "Created project" not in second.stdout
    assert demo.notes() == notes
    assert is_free(demo.port)
