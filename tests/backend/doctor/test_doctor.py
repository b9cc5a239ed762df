"""What `surespan doctor` finds on this machine, in the database and at a service; Label Studio is in tests/e2e."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result
from werkzeug.serving import make_server

from backend.cli import main
from backend.doctor.findings import CHECKS, RUNBOOK, Finding, State
from backend.doctor.server import BEARER, LEGACY, PERSONAL, UNKNOWN, token_kind
from backend.domain.records import AnnotationRecord
from backend.labelstudio.payloads import InvalidPayload
from backend.monitoring.alarms import ADVICE
from backend.settings import load_settings
from backend.store import Store, open_store
from backend.store.attempts import set_aside
from backend.store.events import EventOutcome, inbox_depth, process_events, store_event
from backend.store.jobs import acquire_job, enqueue_job, fail_job, list_jobs
from backend.store.labels import list_labels, record_annotation
from backend.store.monitor import raise_alarm
from backend.store.project_models import store_file
from backend.store.projects import ensure_model, ensure_project, ensure_task
from backend.store.schema import downgrade, upgrade
from backend.store.state import set_state
from backend.store.tables import Event, Job
from tests.support.own_models import add_own, config_of, learn_own, promote_own
from tests.support.running import free_port
from tests.support.service import MakeApp
from tests.support.tokens import web_token
from tests.test_docs import ROOT, slugs

Findings = dict[str, list[dict[str, Any]]]
Run = Callable[..., tuple[int, Findings]]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to work in, and an environment without any of our variables."""
    for name in list(os.environ):
        if name.startswith(("SURESPAN_", "BASIC_AUTH_", "LABEL_STUDIO_", "NUMBA_")) or name in {"PORT", "WORKERS"}:
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PORT", str(free_port()))
    return tmp_path


@pytest.fixture
def store(place: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{place / '.surespan' / 'surespan.db'}") as opened:
        yield opened


def invoke(*options: str, **environment: str) -> Result:
    done = CliRunner().invoke(main, ["doctor", *options], env=environment)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    return done


def examine(*options: str, **environment: str) -> tuple[int, Findings]:
    done = invoke("--json", *(options or ("--quick",)), **environment)
    found: Findings = {}
    for each in json.loads(done.stdout)["findings"]:
        found.setdefault(each["check"], []).append(each)
    return done.exit_code, found


def named(found: Findings, check: str, says: str, remedy: str, *, state: str = "fail") -> None:
    hits = [each for each in found[check] if says in each["found"]]
    assert hits, found[check]
    assert hits[0]["state"] == state
    assert remedy in hits[0]["remedy"]
    assert hits[0]["link"] == f"docs/operate.md#doctor-{check}"


def test_before_the_first_use_nothing_fails_and_nothing_is_made(place: Path) -> None:
    code, found = examine()
    assert code == 0
    assert "does not exist yet" in found["database"][0]["found"]
    assert list(place.iterdir()) == []
    named(found, "service", "does not answer", "surespan serve", state="warn")
    named(found, "token", "cannot be asked", "LABEL_STUDIO_API_KEY", state="skipped")
    assert examine("--quick", "--strict")[0] == 1


@pytest.mark.usefixtures("store")
def test_what_is_printed_is_aligned_and_leads_to_the_runbook() -> None:
    done = invoke("--quick")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "This machine"
    assert {line.index(" ok ") for line in lines if " ok  " in line} == {len("  label-studio  ") - 1}
    assert "see docs/operate.md#doctor-service" in done.stdout
    assert re.search(r"\n\d+ ok, 1 warn, \d+ skipped\. Nothing fails\.\n$", done.stdout)


@pytest.mark.parametrize(
    ("environment", "says", "remedy"),
    [
        ({"SURESPAN_ALPHA": "2"}, "SURESPAN_ALPHA: expected a decimal number", "correct the variable"),
        ({"SURESPAN_HOST": "0.0.0.0"}, "SURESPAN_HOST: expected a loopback", "BASIC_AUTH_USER and BASIC_AUTH_PASS"),  # noqa: S104
        ({"BASIC_AUTH_USER": "ann"}, "BASIC_AUTH_PASS: expected a value", "or neither"),
        ({"BASIC_AUTH_USER": "ann", "BASIC_AUTH_PASS": "hidden"}, "every event is refused", "SURESPAN_WEBHOOK_SECRET"),
        ({"WORKERS": "3"}, "WORKERS is 3", "PostgreSQL"),
    ],
)
@pytest.mark.usefixtures("place")
def test_settings_that_do_not_go_together_are_named(environment: dict[str, str], says: str, remedy: str) -> None:
    code, found = examine(**environment)
    assert code == 1
    named(found, "settings", says, remedy)
    assert "hidden" not in str(found)


@pytest.mark.usefixtures("place")
def test_settings_worth_a_word_are_warnings() -> None:
    code, found = examine(SURESPAN_SYNC_EVERY_MINUTES="0", LABEL_STUDIO_API_KEY="0" * 40)
    assert code == 0
    named(found, "settings", "never comes in by itself", "surespan sync", state="warn")
    named(found, "settings", "LABEL_STUDIO_URL is not", "LABEL_STUDIO_URL", state="warn")


@pytest.mark.usefixtures("store")
def test_a_disk_with_less_than_asked_for_is_named() -> None:
    code, found = examine(SURESPAN_MIN_FREE_MB="1000000000")
    assert code == 1
    for what in ("the database", "compiled code", "temporary files"):
        named(found, "disk", f"MB free for {what}", "free space")


@pytest.mark.heavy
def test_a_cache_that_cannot_be_written_and_a_model_that_is_not_there(place: Path) -> None:
    environment = os.environ | {"NUMBA_CACHE_DIR": "/dev/null/nowhere", "SURESPAN_MODEL": str(place / "gone")}
    done = subprocess.run(
        [sys.executable, "-m", "backend", "doctor", "--json"],
        env=environment | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    found = {each["check"]: [each] for each in json.loads(done.stdout)["findings"]}
    named(found, "cache", "/dev/null/nowhere, which cannot be written", "make that directory writable")
    named(found, "model", str(place / "gone"), "correct SURESPAN_MODEL")


@pytest.mark.usefixtures("store")
def test_the_model_is_loaded_and_its_classes_are_named(served_model: Path) -> None:
    _, found = examine("--strict", SURESPAN_MODEL=str(served_model))
    assert re.search(r"loads in \d+\.\d s; classes .*PER", found["model"][0]["found"])
    assert found["model"][0]["state"] == "ok"


def test_a_schema_that_is_behind_is_named(store: Store) -> None:
    downgrade(store, "-1")
    code, found = examine()
    assert code == 1
    named(found, "schema", "expected schema", "surespan db upgrade")
    assert found["inbox"][0]["state"] == "skipped"


def test_tables_changed_by_hand_are_noticed(store: Store) -> None:
    with store.write() as session:
        session.execute(sa.text("ALTER TABLE tasks ADD COLUMN mine INTEGER"))
    named(examine()[1], "schema", "differ from it", "surespan db check")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite:////dev/null/x.db", "cannot be created"),
        ("sqlite:///notes.txt", "not a database"),
        ("postgresql://ann:hidden@127.0.0.1:1/surespan", "check that the database is running"),
    ],
)
def test_a_database_that_cannot_be_used_is_named_without_its_password(place: Path, url: str, says: str) -> None:
    (place / "notes.txt").write_text("Milk, bread, and a long enough line to look like something. " * 20)
    code, found = examine(SURESPAN_DATABASE_URL=url)
    assert code == 1
    named(found, "database", says, "")
    assert "hidden" not in str(found)


@pytest.mark.usefixtures("place")
def test_postgresql_is_looked_at_alike(postgresql: Any) -> None:
    postgresql.admin("CREATE DATABASE doctor")
    url = postgresql.uri("doctor")
    code, found = examine(SURESPAN_DATABASE_URL=url)
    assert code == 1
    named(found, "schema", "got none", "surespan db upgrade")
    with Store(url) as store:
        upgrade(store)
        store_event(store, {"action": "X", "project": {"id": 1}})
        with store.write() as session:
            session.execute(sa.update(Event).values(due_at=datetime.now(UTC) - timedelta(minutes=25)))
    code, found = examine(SURESPAN_DATABASE_URL=url, WORKERS="2")
    assert (found["settings"][0]["state"], found["schema"][0]["state"]) == ("ok", "ok")
    named(found, "disk", "cannot be seen from here", "", state="skipped")
    named(found, "worker", "due for 25 minutes", "start `surespan worker`")


def test_dead_events_are_named_and_sync_has_them_tried_again(store: Store) -> None:
    def refuse(*_: object) -> EventOutcome:
        raise InvalidPayload("an annotation", "none")

    for number in (1, 2):
        store_event(store, {"action": "ANNOTATION_CREATED", "project": {"id": number}})
    process_events(store, refuse, worker="w", hopeless=(InvalidPayload,))
    code, found = examine()
    assert code == 1
    named(found, "inbox", "2 events failed for good: ANNOTATION_CREATED (InvalidPayload)", "surespan sync --dead")

    runner = CliRunner()
    assert json.loads(runner.invoke(main, ["sync", "--dead", "--project", "2", "--json"]).stdout) == {
        "replayed": 1,
        "labels": 0,
        "jobs": 0,
    }
    assert "1 event waits again" in runner.invoke(main, ["sync", "--dead"]).stdout
    assert "There are no dead events, no labels that were set aside" in runner.invoke(main, ["sync", "--dead"]).stdout
    with store.read() as session:
        assert inbox_depth(session) == {"pending": 2, "dead": 0}
    assert examine()[1]["inbox"][0]["state"] == "ok"
    assert process_events(store, lambda *_: EventOutcome.DONE, worker="w") == 2


def test_labels_and_jobs_that_were_given_up_are_named_and_sync_has_them_tried_again(store: Store) -> None:
    with store.write() as session:
        project = ensure_project(session, "7.1")
        model = ensure_model(session, "m", "ab" * 32, classes=["PER"])
        task = ensure_task(session, project.id, external_id="5", text="Bob")
        record_annotation(session, task.id, AnnotationRecord(1, datetime(2026, 1, 1, tzinfo=UTC), ()))
        given = {"model_id": model.id, "labels": list_labels(session, project.id)}
        set_aside(session, project.id, **given, reason="ValueError: a text nobody may read")
        enqueue_job(session, "refit", key="refit:7.1", project_id=project.id)
        job = acquire_job(session, holder="w")
        assert job is not None
        fail_job(session, job, ValueError("no"))
    code, found = examine()
    assert code == 0
    named(found, "scoring", "1 label was set aside: ValueError", "surespan sync --dead", state="warn")
    assert "nobody may read" not in str(found)
    runner = CliRunner()
    assert "There are no dead events" in runner.invoke(main, ["sync", "--dead", "--project", "8"]).stdout
    said = runner.invoke(main, ["sync", "--dead", "--project", "7"]).stdout
    assert "1 label is scored again" in said
    assert "1 job waits again" in said
    assert examine()[1]["scoring"][0]["state"] == "ok"
    with store.read() as session:
        assert [job.state for job in list_jobs(session)] == ["queued"]


def test_events_and_jobs_that_nobody_takes_are_named(store: Store) -> None:
    store_event(store, {"action": "X", "project": {"id": 1}})
    ago = datetime.now(UTC) - timedelta(minutes=25)
    with store.write() as session:
        session.execute(sa.update(Event).values(due_at=ago))
        enqueue_job(session, "sync", key="sync:1")
        session.execute(sa.update(Job).values(run_after=ago))
    code, found = examine()
    assert code == 1
    named(found, "worker", "due for 25 minutes", "surespan serve")
    named(found, "worker", "jobs have been due for more than ten minutes: sync", "surespan serve")
    with store.write() as session:
        assert acquire_job(session, holder="gone", kinds=["sync"], lease=timedelta(minutes=1)) is not None
        session.execute(sa.update(Job).values(lease_until=ago))
    named(
        examine(SURESPAN_WORKER="false")[1],
        "worker",
        "jobs of a worker that is gone were not taken over: sync",
        "surespan worker",
    )


def test_jobs_that_failed_are_named_by_kind_and_error(store: Store) -> None:
    with store.write() as session:
        enqueue_job(session, "refit", key="refit:1")
        job = acquire_job(session, holder="w", kinds=["refit"], lease=timedelta(minutes=1))
        assert job is not None
        fail_job(session, job, ValueError("a text nobody may read"))
    code, found = examine()
    assert code == 0
    named(found, "worker", "refit 1 (ValueError)", "log", state="warn")
    assert "nobody may read" not in str(found)


def test_what_the_database_knows_of_a_project_is_said_without_label_studio(store: Store) -> None:
    with store.write() as session:
        project = ensure_project(session, "7.1")
        set_state(session, project.id, "connection", {"backend": 1, "backend_url": "http://127.0.0.1:9090"})
        set_state(session, project.id, "sync", {"error": "GET /api/tasks/: no answer"})
        model = ensure_model(session, "m", "ab" * 32, classes=["PER"])
        raise_alarm(
            session, project.id, model_id=model.id, kind="gap", stratum="", value=0.2, message="Much. " + ADVICE["gap"]
        )
    code, found = examine()
    assert code == 1
    named(found, "sync", "reconciliation failed: GET /api/tasks/", "token")
    (alarm,) = found["alarms"]
    assert (alarm["found"], alarm["remedy"]) == ("gap: Much.", ADVICE["gap"])
    assert alarm["link"] == "docs/operate.md#alarm-gap"
    assert found["webhook"][0]["state"] == "skipped"
    assert found["webhook"][0]["project"] == 7


def test_the_own_model_of_a_project_is_looked_at(store: Store, tmp_path: Path) -> None:
    settings = load_settings()
    digest = learn_own(tmp_path / "own")
    add_own(store, settings, "7.1", tmp_path / "own", config=config_of("Drug", "Symptom"))
    promote_own(store, settings, "7.1", digest)
    _, found = examine("--quick", "--project", "7")
    named(found, "own-model", f"own@{digest[:8]} serves, trained on 20 labels", "", state="ok")
    with store.write() as session:
        store_file(session, digest, b"no model at all")
    _, found = examine("--quick", "--project", "7")
    named(found, "own-model", "cannot be had", "surespan models --project 7 --promote")


@pytest.fixture
def served(make_app: MakeApp) -> Iterator[Callable[..., str]]:
    """Serve the real application, its model not loaded, from a thread; returns its address."""
    running = []

    def serve(**changes: Any) -> str:
        server = make_server("127.0.0.1", 0, make_app(start=False, **changes), threaded=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        running.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}"

    yield serve
    for server, thread in running:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.usefixtures("place")
def test_a_service_with_other_credentials_is_named(served: Callable[..., str]) -> None:
    from pydantic import SecretStr  # noqa: PLC0415

    url = served(
        basic_auth_user="ann", basic_auth_pass=SecretStr("right"), webhook_secret=SecretStr("right"), host="127.0.0.1"
    )
    right = {"BASIC_AUTH_USER": "ann", "BASIC_AUTH_PASS": "right", "SURESPAN_WEBHOOK_SECRET": "right"}
    _, found = examine("--quick", "--service-url", url, **right)
    assert found["credentials"][0]["state"] == "ok"
    named(found, "service", "not loaded yet", "wait", state="warn")
    for name, says in (("BASIC_AUTH_PASS", "BASIC_AUTH_USER and"), ("SURESPAN_WEBHOOK_SECRET", "/webhook of the")):
        _, found = examine("--quick", "--service-url", url, **(right | {name: "wrong"}))
        named(found, "credentials", says, "restart the service")


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>Welcome to the proxy</html>")

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.mark.usefixtures("place")
def test_something_else_at_an_address_is_not_taken_for_ours_or_theirs() -> None:
    with HTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"
        code, found = examine("--quick", "--service-url", address, "--url", address, "--api-key", "0" * 40)
        server.shutdown()
        thread.join()
    assert code == 1
    named(found, "service", "does not answer", "surespan serve")
    named(found, "label-studio", "is not Label Studio", "LABEL_STUDIO_URL")
    _, found = examine("--quick", "--url", "labels.example.org")
    named(found, "label-studio", "not the address of a server", "http://")
    _, found = examine("--quick", "--url", f"http://127.0.0.1:{free_port()}")
    named(found, "label-studio", "does not answer", "start Label Studio")


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("0123456789abcdef" * 2 + "01234567", LEGACY),
        (web_token(token_type="refresh", exp=8_000_000_000), PERSONAL),
        (web_token(token_type="access", exp=8_000_000_000), BEARER),
        ("a.b.c", UNKNOWN),
        ("password", UNKNOWN),
    ],
)
def test_kinds_of_tokens_are_told_apart(key: str, kind: str) -> None:
    assert token_kind(key)[0] == kind


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (web_token(token_type="refresh", exp=1_700_000_000), "expired on 2023-11-14"),
        (web_token(token_type="access", exp=8_000_000_000), "five minutes"),
    ],
)
@pytest.mark.usefixtures("place")
def test_a_token_that_can_never_be_accepted_is_named_without_asking(key: str, says: str) -> None:
    code, found = examine("--quick", "--api-key", key)
    assert code == 1
    named(found, "token", says, "Account & Settings")
    assert key not in str(found)


@pytest.mark.usefixtures("place")
def test_wrong_options_have_an_exit_code_of_their_own() -> None:
    assert invoke("--project", "zero").exit_code == 2


def test_every_finding_and_every_alarm_has_its_entry_in_the_runbook() -> None:
    there = slugs(ROOT / RUNBOOK)
    links = [Finding(check, State.FAIL, "").link for check in CHECKS]
    links += [f"{RUNBOOK}#alarm-{kind}" for kind in ADVICE]
    assert [link for link in links if link.partition("#")[2] not in there] == []
    entries = {slug for slug in there if slug.startswith(("doctor-", "alarm-"))}
    assert entries == {link.partition("#")[2] for link in links}, "an entry for something that is not found any more"
