"""`surespan doctor` on a real set-up that is sound, and then on one fault after the other, each planted for real."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner
from sqlalchemy.orm import Session

from backend.cli import main
from backend.demo.processes import free_port
from backend.domain.records import EventRecord
from backend.labelstudio.payloads import InvalidPayload
from backend.store import Store
from backend.store.events import EventOutcome, process_events, store_event
from backend.store.schema import downgrade, upgrade
from tests.support.commands import surespan_json
from tests.support.end_to_end import ProjectFactory, ServiceFactory
from tests.support.label_studio import FLAGGED, UNFLAGGED, Project, Service
from tests.support.tokens import web_token

TEXT = "a text nobody may read"
NAMES = ("SURESPAN_", "BASIC_AUTH_", "LABEL_STUDIO_")


Plant = Callable[["Doctor"], AbstractContextManager[dict[str, str] | None]]


class Fault(NamedTuple):
    """How it is planted, the check that must name it, what that says, and a part of the remedy."""

    plant: Plant
    check: str
    says: str
    remedy: str


class Doctor:
    """A connected project and its service; `examine` runs the command in the service's environment."""

    def __init__(self, service: Service, project: Project) -> None:
        self.service, self.project = service, project

    def environment(self, **more: str) -> dict[str, str]:
        given = {name: value for name, value in self.service.environment.items() if name.startswith(NAMES)}
        return given | {"PORT": str(self.service.port)} | more

    def examine(
        self, *options: str, quick: bool = True, **environment: str
    ) -> tuple[int, dict[str, list[dict[str, Any]]], str]:
        """Return the exit code, the findings by check and all that was printed."""
        arguments = ["doctor", "--json", "--project", str(self.project.id), *options, *(["--quick"] if quick else [])]
        done = CliRunner().invoke(main, arguments, env=self.environment(**environment))
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        found: dict[str, list[dict[str, Any]]] = {}
        for each in json.loads(done.stdout)["findings"]:
            found.setdefault(each["check"], []).append(each)
        return done.exit_code, found, done.output

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Call Label Studio's API about the project."""
        return self.project.server.call(method, path, body, project=self.project.id)

    @property
    def hook(self) -> dict[str, Any]:
        return dict(self.call("GET", "/api/webhooks/")[0])

    @property
    def backend(self) -> dict[str, Any]:
        return dict(self.call("GET", "/api/ml/")[0])


@pytest.fixture(scope="module")
def doctor(start_service: ServiceFactory, make_project: ProjectFactory) -> Doctor:
    """A sound set-up; nobody works on its inbox, so that what is planted there stays."""
    running = start_service(SURESPAN_WORKER="false")
    work = make_project([], label_config=FLAGGED)
    options = ("--backend-url", running.url, "--sampling", "keep", "--yes")
    surespan_json(running, "connect", "--project", str(work.id), *options)
    return Doctor(running, work)


def states(found: dict[str, list[dict[str, Any]]], *wanted: str) -> set[str]:
    return {check for check, each in found.items() if any(one["state"] in wanted for one in each)}


def test_a_sound_set_up_has_no_fault_and_the_command_says_so_in_words(doctor: Doctor) -> None:
    code, found, _ = doctor.examine("--strict")
    assert states(found, "fail", "warn") == set(), found
    assert states(found, "skipped") == {"model"}  # --quick
    assert code == 0
    shown = subprocess.run(
        doctor.service.command("doctor", "--strict", "--quick"),
        env=doctor.service.environment | doctor.environment(),
        cwd=doctor.service.directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "PER → PER" in shown.stdout
    assert "Nothing fails." in shown.stdout


@contextmanager
def project_with(doctor: Doctor, **changes: Any) -> Iterator[None]:
    before = doctor.project.details
    doctor.call("PATCH", f"/api/projects/{doctor.project.id}/", changes)
    try:
        yield
    finally:
        kept = {name: before[name] for name in (*changes, "model_version")}  # no prelabels: no version either
        doctor.call("PATCH", f"/api/projects/{doctor.project.id}/", kept)


@contextmanager
def hook_with(doctor: Doctor, **changes: Any) -> Iterator[None]:
    hook = doctor.hook
    doctor.call("PATCH", f"/api/webhooks/{hook['id']}/", {"url": hook["url"], **changes})
    try:
        yield
    finally:
        kept = {name: hook[name] for name in ("url", "headers", "is_active", "send_for_all_actions")}
        doctor.call("PATCH", f"/api/webhooks/{hook['id']}/", kept)


@contextmanager
def no_hook(doctor: Doctor) -> Iterator[None]:
    hook = doctor.hook
    doctor.call("DELETE", f"/api/webhooks/{hook['id']}/")
    try:
        yield
    finally:
        kept = {name: hook[name] for name in ("project", "url", "headers", "send_payload", "send_for_all_actions")}
        doctor.call("POST", "/api/webhooks/", kept)


@contextmanager
def titled(doctor: Doctor, name: str) -> Iterator[None]:
    backend = doctor.backend
    service = doctor.service
    auth = {"auth_method": "BASIC_AUTH", "basic_auth_user": service.user, "basic_auth_pass": service.password}
    body = {"project": doctor.project.id, "url": backend["url"], **auth}
    doctor.call("PATCH", f"/api/ml/{backend['id']}", body | {"title": name})
    try:
        yield
    finally:
        doctor.call("PATCH", f"/api/ml/{backend['id']}", body | {"title": backend["title"]})


@contextmanager
def dead_event(doctor: Doctor) -> Iterator[None]:
    """An event that processing gives up on, as a payload does that cannot be read; replayed and gone afterwards."""

    def refuse(_session: Session, event: EventRecord) -> EventOutcome:
        if event.project_key == "424242":
            raise InvalidPayload("an annotation", "none")
        return EventOutcome.SKIPPED

    with doctor.service.open_store() as store:
        store_event(store, {"action": "ANNOTATION_CREATED", "project": {"id": 424242}, "task": {"data": TEXT}})
        process_events(store, refuse, worker="test", hopeless=(InvalidPayload,))
        try:
            yield
        finally:
            said = CliRunner().invoke(main, ["sync", "--dead", "--json"], env=doctor.environment())
            assert json.loads(said.stdout) == {"replayed": 1, "labels": 0, "jobs": 0}
            process_events(store, lambda *_: EventOutcome.SKIPPED, worker="test")


def setting(**environment: str) -> Plant:
    """Return a fault that is a setting of the command's environment."""

    @contextmanager
    def plant(_doctor: Doctor) -> Iterator[dict[str, str]]:
        yield environment

    return plant


@contextmanager
def old_schema(doctor: Doctor) -> Iterator[dict[str, str]]:
    url = f"sqlite:///{doctor.service.directory / 'old.db'}"
    with Store(url) as store:
        upgrade(store)
        downgrade(store, "-1")
    yield {"SURESPAN_DATABASE_URL": url}


UNKNOWN_LABEL = UNFLAGGED.replace("</Labels>", '<Label value="Spaceship"/></Labels>')
NOBODY = UNFLAGGED.replace("PER", "Spaceship").replace("ORG", "Planet").replace("LOC", "Star").replace("MISC", "Moon")
EXPIRED = web_token(token_type="refresh", exp=1_700_000_000)
FIVE_MINUTES = web_token(token_type="access", exp=4_000_000_000)
FAULTS = [
    Fault(setting(LABEL_STUDIO_API_KEY="0" * 40), "token", "refuses this legacy token", "Account & Settings"),
    Fault(setting(LABEL_STUDIO_API_KEY=EXPIRED), "token", "expired on 2023-11-14", "Account & Settings"),
    Fault(setting(LABEL_STUDIO_API_KEY=FIVE_MINUTES), "token", "is valid for five minutes", "Account & Settings"),
    Fault(setting(LABEL_STUDIO_URL="http://127.0.0.1:1"), "label-studio", "does not answer", "LABEL_STUDIO_URL"),
    Fault(setting(SURESPAN_WEBHOOK_SECRET="another"), "credentials", "refuses SURESPAN_WEBHOOK_SECRET", "restart"),
    Fault(setting(BASIC_AUTH_PASS="another"), "credentials", "refuses BASIC_AUTH_USER", "restart"),
    Fault(setting(SURESPAN_MIN_FREE_MB="1000000000"), "disk", "MB free for the database", "free space"),
    Fault(setting(SURESPAN_WEBHOOK_SECRET=""), "settings", "every event is refused", "SURESPAN_WEBHOOK_SECRET"),
    Fault(setting(SURESPAN_ALPHA="2"), "settings", "SURESPAN_ALPHA: expected", "correct the variable"),
    Fault(old_schema, "schema", "expected schema", "surespan db upgrade"),
    Fault(no_hook, "webhook", "no webhook to", "surespan connect"),
    Fault(partial(hook_with, headers={"X-Surespan-Secret": "wrong"}), "webhook", "has another X-Surespan", "connect"),
    Fault(partial(hook_with, is_active=False), "webhook", "is switched off", "surespan connect"),
    Fault(
        partial(hook_with, send_for_all_actions=False, actions=["TASKS_CREATED"]),
        "webhook", "does not send ANNOTATIONS_CREATED", "surespan connect",
    ),
    Fault(partial(titled, name="My model"), "version", "title is My model", "surespan connect"),
    Fault(partial(project_with, model_version=""), "version", "model version is empty", "surespan connect"),
    Fault(partial(project_with, sampling="Sequential sampling"), "sampling", "do not calibrate", "--sampling uniform"),
    Fault(partial(project_with, sampling="Uncertainty sampling"), "sampling", "only blind audit", "--sampling uniform"),
    Fault(partial(project_with, label_config=UNFLAGGED), "flags", "no control that marks", "surespan connect"),
    Fault(partial(project_with, label_config=UNKNOWN_LABEL), "labels", "Spaceship", "predicted_values"),
    Fault(partial(project_with, label_config=NOBODY), "labels", "Moon are not known to the model", "surespan train"),
    Fault(partial(project_with, show_collab_predictions=False), "prelabels", "does not show", "surespan connect"),
    Fault(dead_event, "inbox", "1 event failed for good: ANNOTATION_CREATED (InvalidPayload)", "surespan sync --dead"),
]  # fmt: skip
FOLLOWS = {
    "refuses SURESPAN_WEBHOOK_SECRET": {"webhook"},
    "every event is refused": {"credentials"},
    "Spaceship": {"flags", "version"},
    "no control that marks": {"version"},
    "Moon are not known to the model": {"flags", "version"},
    "does not show": {"version"},
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.check}: {fault.says}")
def test_a_planted_fault_is_named_with_its_remedy_and_nothing_else_is(doctor: Doctor, fault: Fault) -> None:
    with fault.plant(doctor) as environment:
        code, found, printed = doctor.examine(**(environment or {}))
    named = [each for each in found[fault.check] if fault.says in each["found"]]
    assert named, found[fault.check]
    assert fault.remedy in named[0]["remedy"]
    assert named[0]["link"] == f"docs/operate.md#doctor-{fault.check}"
    assert named[0]["state"] in {"warn", "fail"}
    assert code == bool(states(found, "fail"))
    # What follows from the fault may be named too; what has nothing to do with it may not.
    assert states(found, "fail", "warn") <= {fault.check, *FOLLOWS.get(fault.says, ())}, found
    for secret in (doctor.service.password, doctor.service.webhook_secret, EXPIRED, FIVE_MINUTES, "0" * 40, TEXT):
        assert secret not in printed


def test_an_address_that_label_studio_may_not_call_is_named(doctor: Doctor) -> None:
    """The tests' server refuses the link-local range only; a default one refuses all private networks alike."""
    before = doctor.call("GET", "/api/webhooks/"), doctor.call("GET", "/api/ml/")
    code, found, _ = doctor.examine("--service-url", "http://169.254.1.1:9090")
    assert code == 1
    (refused,) = found["address"]
    assert refused["state"] == "fail"
    assert "predictions and events" in refused["found"]
    assert "USE_DEFAULT_BANNED_SUBNETS=false" in refused["remedy"]
    unknown = doctor.examine("--service-url", "http://no-such-machine.invalid:9090")[1]["address"][0]
    assert "does not know the name" in unknown["found"]
    after = doctor.call("GET", "/api/webhooks/"), doctor.call("GET", "/api/ml/")
    assert [[each["id"] for each in part] for part in after] == [[each["id"] for each in part] for part in before]


def test_a_project_that_is_not_connected_or_not_there_is_named(doctor: Doctor, make_project: ProjectFactory) -> None:
    stranger = make_project([], label_config=FLAGGED)
    code, found, _ = doctor.examine("--project", str(stranger.id), "--project", "999999")
    assert code == 1
    by_project = {each["project"]: each for each in found["project"]}
    assert by_project[doctor.project.id]["state"] == "ok"
    assert "not connected" in by_project[stranger.id]["found"]
    assert by_project[stranger.id]["remedy"] == f"run `surespan connect --project {stranger.id}`"
    assert "404" in by_project[999999]["found"]


def test_faults_of_the_machine_are_all_named_at_once(doctor: Doctor) -> None:
    broken = {"SURESPAN_MODEL": "no-such-folder", "NUMBA_CACHE_DIR": "/dev/null/nowhere", "PORT": str(free_port())}
    code, found, _ = doctor.examine(quick=False, **broken)
    assert code == 1
    for check, says, remedy in (
        ("model", "no-such-folder", "correct SURESPAN_MODEL"),
        ("cache", "/dev/null/nowhere, which cannot be written", "make that directory writable"),
        ("service", "does not answer (ConnectError)", "start `surespan serve`"),
    ):
        assert found[check][0]["state"] == "fail"
        assert says in found[check][0]["found"]
        assert remedy in found[check][0]["remedy"]


def test_without_a_token_the_local_checks_run_and_ordering_is_said_to_be_off(doctor: Doctor) -> None:
    code, found, _ = doctor.examine(LABEL_STUDIO_API_KEY="")
    assert code == 0
    assert found["token"][0]["state"] == "skipped"
    assert "cannot be asked" in found["token"][0]["found"]
    assert "LABEL_STUDIO_API_KEY" in found["token"][0]["remedy"]
    assert {"webhook", "version", "address", "labels"} <= states(found, "skipped")
    assert {"settings", "database", "schema", "inbox", "service", "label-studio"} <= states(found, "ok")


def test_a_service_that_is_down_is_named_from_both_sides(doctor: Doctor) -> None:
    doctor.service.stop()  # the last test of this module
    code, found, _ = doctor.examine()
    assert code == 1
    assert "does not answer" in found["service"][0]["found"]
    assert "surespan serve" in found["service"][0]["remedy"]
    assert f"Label Studio cannot use {doctor.service.url}" in found["backend"][0]["found"]
    assert states(found, "fail") == {"service", "backend"}
