"""The real parts that the end-to-end tests put together: Label Studio, the service, projects."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from backend.cli import main as main_command
from backend.demo.install import ENVIRONMENT, label_studio_command
from backend.demo.label_studio import START_SECONDS, create_personal_token, start_label_studio
from backend.demo.processes import LOOPBACK, Child, free_port
from backend.demo.variables import Account
from backend.store import Store, open_store
from tests.support.paths import ROOT
from tests.support.waiting import WAIT, wait_for

CHROMIUM = "/usr/bin/chromium"
CHROMIUM_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
ACCOUNT = Account("annotator@example.com", "password-of-a-test", "0123456789abcdef" * 2 + "01234567")
RUNNING = "E2E_LABEL_STUDIO"  # address and personal access token of a server that runs already

# The label config of most tests: four classes with keys 1 to 4 and the flag with key 5, as `surespan connect` makes it.
FLAGGED = """<View>
  <Labels name="label" toName="text">
    <Label value="PER" background="#e6194b"/>
    <Label value="ORG" background="#4363d8"/>
    <Label value="LOC" background="#3cb44b"/>
    <Label value="MISC" background="#911eb4"/>
  </Labels>
  <Labels name="flag" toName="text">
    <Label value="Needs review" background="#ffb000"/>
  </Labels>
  <Text name="text" value="$text" showLabels="true"/>
</View>"""
UNFLAGGED = FLAGGED.replace(
    """  <Labels name="flag" toName="text">
    <Label value="Needs review" background="#ffb000"/>
  </Labels>
""",
    "",
)


def missing(what: str, remedy: str) -> None:
    """Leave the test out where a real part is missing; in continuous integration that is a failure."""
    message = f"{what} is not there, so nothing is tested against it: {remedy}"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


def api_client(url: str) -> httpx.Client:
    """Return a client of Label Studio's API with the legacy token."""
    headers = {"Authorization": f"Token {ACCOUNT.token}"}
    return httpx.Client(base_url=url, headers=headers, timeout=60.0, trust_env=False)


@dataclass(frozen=True)
class LabelStudioServer:
    """A running Label Studio with its first user; it takes `account.token` (legacy) and `personal_token` alike."""

    url: str
    account: Account
    personal_token: str
    log: Path | None
    client: httpx.Client = field(repr=False)

    def call(self, method: str, path: str, body: Any = None, **params: Any) -> Any:
        """Call the API with the legacy token; returns the JSON answer, None when there is no body."""
        answer = self.client.request(method, path, json=body, params=params or None)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text[:2000]}"
        return answer.json() if answer.content else None

    def task(self, task: int) -> dict[str, Any]:
        """Return a task with its predictions and annotations."""
        return dict(self.call("GET", f"/api/tasks/{task}/"))

    def annotate(self, task: int, result: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
        """Submit an annotation as the editor does."""
        body = {"result": list(result), "lead_time": 1.0, **more}
        return dict(self.call("POST", f"/api/tasks/{task}/annotations/", body))


@dataclass(frozen=True)
class Project:
    """A project of the server, and the ids of the tasks it was made with, in the order of its texts."""

    server: LabelStudioServer
    id: int
    created_at: str
    tasks: tuple[int, ...]

    @property
    def uid(self) -> str:
        """What /setup and /predict call the project."""
        created = datetime.fromisoformat(self.created_at)
        return f"{self.id}.{int(created.timestamp())}"

    @property
    def details(self) -> dict[str, Any]:
        """What the server says about it now."""
        return dict(self.server.call("GET", f"/api/projects/{self.id}/"))

    def add(self, texts: Iterable[str]) -> tuple[int, ...]:
        """Import further texts; returns their task ids."""
        return import_texts(self.server, self.id, texts)

    def predict(self, tasks: Iterable[int] | None = None) -> None:
        """Ask for predictions as "Retrieve predictions" of the Data Manager does."""
        chosen = {"all": True, "excluded": []} if tasks is None else {"all": False, "included": list(tasks)}
        self.server.call(
            "POST", "/api/dm/actions/", {"selectedItems": chosen, "project": self.id}, id="retrieve_tasks_predictions",
            project=self.id,
        )  # fmt: skip


def import_texts(server: LabelStudioServer, project: int, texts: Iterable[str]) -> tuple[int, ...]:
    """Import texts as tasks; returns their ids in the order of the texts."""
    wanted = list(texts)
    if not wanted:
        return ()
    body = [{"data": {"text": text}} for text in wanted]
    answer = server.call("POST", f"/api/projects/{project}/import", body, return_task_ids="true")
    ids = tuple(sorted(int(task) for task in answer["task_ids"]))
    assert len(ids) == len(wanted)
    return ids


class Service:
    """The real `surespan serve`, on SQLite with the worker inside; it may be stopped and started again.

    Another database is among the `settings`, under SURESPAN_DATABASE_URL. What the tests need to reach it:
    `url`, `user`, `password`, `webhook_secret`, `database_url`, `log`.
    """

    def __init__(
        self, directory: Path, server: LabelStudioServer, *, api_key: str, settings: Mapping[str, str]
    ) -> None:
        self.directory, self.server = directory, server
        self.port = free_port()
        self.url = f"http://{LOOPBACK}:{self.port}"
        self.user, self.password, self.webhook_secret = "surespan", "password-of-a-test", "secret-of-a-test"
        self.database_url = settings.get("SURESPAN_DATABASE_URL", f"sqlite:///{directory / 'surespan.db'}")
        self.log = directory / "serve.log"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SURESPAN_", "BASIC_AUTH_"))},
            "SURESPAN_LEARN": "off",  # see tests/conftest.py
            "SURESPAN_DATABASE_URL": self.database_url,
            "BASIC_AUTH_USER": self.user,
            "BASIC_AUTH_PASS": self.password,
            "SURESPAN_HOST": LOOPBACK,
            "SURESPAN_WEBHOOK_SECRET": self.webhook_secret,
            "LABEL_STUDIO_URL": server.url,
            "LABEL_STUDIO_API_KEY": api_key,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            **settings,
        }
        self._child: Child | None = None

    def start(self, program: Sequence[str] = ("backend",), *, wait: bool = True) -> Service:
        """Start it, and wait until it answers with the model loaded; `program` is what is run as a module.

        One that kills itself soon may not live that long: without `wait` it is only started.
        """
        assert self._child is None, "it runs already"
        self._child = Child(
            "surespan serve",
            [sys.executable, "-m", *program, "serve", "--port", str(self.port)],
            url=self.url,
            log=self.log,
            environment=self.environment,
            directory=self.directory,
        )
        if not wait:
            return self
        self._child.wait_until_up(WAIT)
        # The first one after an installation compiles the kernels, perhaps beside other tests that do the same.
        wait_for(lambda: self.call("GET", "/health")["model"] == "ready", "the model is loaded", seconds=2 * WAIT)
        return self

    def stop(self) -> int:
        """Ask it to stop; return its exit code."""
        child, self._child = self._child, None
        return 0 if child is None else child.stop()

    def kill(self) -> None:
        """End it as a power cut would, its workers included."""
        child, self._child = self._child, None
        assert child is not None
        os.killpg(child.process.pid, signal.SIGKILL)
        child.process.wait()

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._child is not None and self._child.alive

    def wait_for_death(self, seconds: float) -> None:
        """Wait until it has killed itself, as `tests.support.mortal` makes it do."""
        assert self._child is not None
        wait_for_death(self._child, seconds)
        self._child = None

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Call a route with the service's credentials; returns the JSON answer."""
        auth = httpx.BasicAuth(self.user, self.password)
        answer = httpx.request(method, self.url + path, json=body, auth=auth, timeout=WAIT, trust_env=False)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text[:2000]}"
        return answer.json()

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of `surespan ...`; run it with `environment`."""
        return [sys.executable, "-m", "backend", *arguments]

    def run(self, *arguments: str, **more: str) -> str:
        """Run `surespan ...` in the service's environment and return what it printed.

        It runs in the process of the tests: one of its own would be busy with imports for seconds.
        """
        strange = {name: None for name in os.environ if name not in self.environment}
        environment: dict[str, str | None] = {**strange, **self.environment, **more}
        with chdir(self.directory):
            done = CliRunner().invoke(main_command, arguments, env=environment)
        said = f"surespan {' '.join(arguments)}: {done.stdout}\n{done.stderr}"
        assert done.exception is None or isinstance(done.exception, SystemExit), said + repr(done.exception)
        assert done.exit_code == 0, said
        return done.stdout

    def connect(self, project: Project, *options: str) -> dict[str, Any]:
        """Run `surespan connect` for a project, and wait until the worker has given all tasks their predictions."""
        asked = ("--project", str(project.id), "--backend-url", self.url, "--sampling", "keep", "--yes", "--json")
        answer = json.loads(self.run("connect", *asked, *options))
        self.wait_for_jobs(project)
        return dict(answer)

    def wait_for_jobs(self, project: Project) -> None:
        """Wait until no job of the project waits or runs."""

        def idle() -> bool:
            jobs = self.call("GET", f"/api/v1/jobs?project={project.uid}&limit=50")["jobs"]
            return not any(job["state"] in {"queued", "running"} for job in jobs)

        wait_for(idle, "all jobs are done")

    def open_store(self) -> Store:
        """Return the service's database; close it (it is a context manager)."""
        return open_store(self.database_url)


def wait_for_death(child: Child, seconds: float) -> None:
    """Wait until a process that kills itself has done so."""
    wait_for(lambda: not child.alive, f"{child.name} has died", seconds=seconds)
    assert child.process.returncode == -signal.SIGKILL, child.log.read_text()[-3000:]


def main() -> None:
    """Keep a Label Studio running for whoever writes these tests, until Ctrl-C."""
    command = label_studio_command(ROOT / ENVIRONMENT)
    assert command is not None, "run `surespan demo --install-only` first"
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        child = start_label_studio(
            command, port=free_port(), data=place / "data", account=ACCOUNT, log=place / "server.log"
        )
        try:
            child.wait_until_up(START_SECONDS)
            token = create_personal_token(child.url, ACCOUNT)  # a server shows it once
            print(f"export {RUNNING}='{child.url} {token}'", flush=True)
            child.process.wait()
        except KeyboardInterrupt:
            pass
        finally:
            child.stop()


if __name__ == "__main__":
    main()
