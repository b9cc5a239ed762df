"""The whole way of a label on an earlier version of Label Studio, with both kinds of tokens.

`make test` runs it on the pinned version, `make soak` also on the earlier one, whose server it starts (and installs).
Label Studio on PostgreSQL needs an extension that the tests' own server lacks: `make image` runs that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.demo.errors import DemoError
from backend.demo.install import LABEL_STUDIO_VERSION, environment_of, install_label_studio
from backend.demo.label_studio import START_SECONDS, create_personal_token, start_label_studio
from backend.demo.processes import free_port
from backend.store.projects import find_project
from backend.store.tables import CalibrationScore, Event, Task
from tests.support.label_studio import (
    ACCOUNT,
    FLAGGED,
    ROOT,
    LabelStudioServer,
    Project,
    Service,
    api_client,
    import_texts,
    missing,
)
from tests.support.waiting import wait_for

TEXTS = [f"Maria {name} lives in Paris." for name in ("Abel", "Brown", "Costa")]
EARLIER = "1.23.0"  # the last one whose own defaults let it call a backend on this machine
OWN_DEFAULTS = {"USE_DEFAULT_BANNED_SUBNETS": "true", "USER_ADDITIONAL_BANNED_SUBNETS": ""}


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabelStudioServer]:
    """A server of the earlier version, which keeps its own defaults of the addresses that it may call."""
    try:
        command = install_label_studio(
            ROOT / environment_of(EARLIER), say=print, progress=lambda _: None, version=EARLIER
        )
    except DemoError as error:
        missing(f"Label Studio {EARLIER}", str(error))
    directory = tmp_path_factory.mktemp("label-studio")
    data, log = directory / "data", directory / "server.log"
    child = start_label_studio(command, port=free_port(), data=data, account=ACCOUNT, log=log, more=OWN_DEFAULTS)
    try:
        child.wait_until_up(START_SECONDS)
        with api_client(child.url) as client:
            yield LabelStudioServer(child.url, ACCOUNT, create_personal_token(child.url, ACCOUNT), log, client)
    finally:
        child.stop()


def live_through(service: Service, server: LabelStudioServer) -> None:
    """Connect, predict, submit, hear of it by the webhook, score the label, disconnect."""
    body = {"title": "Another version", "label_config": FLAGGED, "sampling": "Uniform sampling"}
    made = server.call("POST", "/api/projects/", body)
    project = Project(server, made["id"], made["created_at"], import_texts(server, made["id"], TEXTS))
    service.connect(project)
    shown = [server.task(task)["predictions"] for task in project.tasks]
    spans = [
        TEXTS[i][each["value"]["start"] : each["value"]["end"]] for i in range(3) for each in shown[i][-1]["result"]
    ]
    assert spans.count("Paris") >= 3
    project.predict([project.tasks[2]])  # Label Studio itself asks the service
    server.annotate(project.tasks[0], shown[0][-1]["result"])

    def heard(session: Session) -> list[tuple[str, int]]:
        known = find_project(session, project.uid)
        assert known is not None
        said = sa.select(Event).where(Event.project_key == known.key, Event.action == "ANNOTATION_CREATED")
        scored = sa.select(CalibrationScore.task_id).join(Task, Task.id == CalibrationScore.task_id)
        tasks = session.execute(scored.where(Task.project_id == known.id)).scalars().all()
        return [(row.payload, len(tasks)) for row in session.execute(said).scalars() if tasks]

    with service.open_store() as store:

        def arrived() -> list[tuple[str, int]]:
            with store.read() as session:
                return heard(session)

        ((payload, scored),) = wait_for(arrived, "the webhook's event is a scored label")
    assert "surespan" not in json.loads(payload)  # nobody had to ask for it
    assert scored == 1
    service.run("disconnect", "--project", str(project.id), "--json")
    assert server.call("GET", "/api/ml/", project=project.id) == []
    assert server.call("GET", "/api/webhooks/", project=project.id) == []


def test_the_pinned_version(showing_service: Service, label_studio: LabelStudioServer) -> None:
    assert label_studio.call("GET", "/api/version")["release"] == LABEL_STUDIO_VERSION
    live_through(showing_service, label_studio)


@pytest.mark.slow
@pytest.mark.parametrize("personal", [False, True], ids=["legacy token", "personal token"])
def test_the_earlier_version(earlier: LabelStudioServer, tmp_path: Path, *, personal: bool) -> None:
    assert earlier.call("GET", "/api/version")["release"] == EARLIER
    key = earlier.personal_token if personal else earlier.account.token
    settings = {"SURESPAN_BLIND": "0", "SURESPAN_AT_WORK_MINUTES": "0", "SURESPAN_SYNC_EVERY_MINUTES": "0"}
    service = Service(tmp_path, earlier, api_key=key, settings=settings).start()
    try:
        live_through(service, earlier)
    finally:
        service.stop()
