"""Two worker processes on a real PostgreSQL server: both serve, both pick a new version up, nothing is lost."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from backend.prediction.starter import starter_calibration
from backend.store import Store
from backend.store.events import inbox_depth
from backend.store.projects import ensure_model, ensure_project, find_project, find_task
from backend.store.schema import upgrade
from backend.store.thresholds import write_version
from tests.backend.http.test_load import tagger_of_the_project
from tests.backend.http.test_serve import metrics
from tests.support import payload_shapes as shapes
from tests.support.running import running
from tests.support.waiting import wait_for


@pytest.mark.e2e
@pytest.mark.slow
def test_two_workers_share_one_database(served_model: Path, tmp_path: Path, postgresql: Any) -> None:
    name = f"t{uuid.uuid4().hex[:12]}"
    postgresql.admin(f"CREATE DATABASE {name}")
    with Store(postgresql.uri(name)) as store:
        upgrade(store)
        more = {"SURESPAN_DATABASE_URL": postgresql.uri(name), "WORKERS": "2", "LOG_LEVEL": "warning"}
        with running(tmp_path, served_model, **more) as service:
            service.wait_until_up()
            for i in range(20):
                assert service.call("/webhook", shapes.events()[i % 9])[0] == 200
                status, answer = service.call("/predict", shapes.predict([shapes.task(i, shapes.TEXTS[i % 4])]))
                assert (status, len(answer["results"])) == (200, 1)
            # Whichever process is asked, it tells of all.
            for _ in range(6):
                said = metrics(service)
                assert 'surespan_events_total{outcome="stored"} 20.0' in said
                assert "surespan_predict_tasks_count 20.0" in said
                assert "surespan_inbox_events" in said
            number = activate(store, served_model)

            def versions() -> set[str]:
                answers = [service.call("/setup", shapes.setup())[1]["model_version"] for _ in range(30)]
                return {version.rsplit(".", 1)[1] for version in answers}

            wait_for(lambda: versions() == {str(number)}, "either process has polled")
            assert service.stop() == 0
            assert service.log.read_text() == ""
        with store.read() as session:
            assert inbox_depth(session)["pending"] == 20
            project = find_project(session, shapes.PROJECT)
            assert project is not None
            assert all(find_task(session, project.id, external_id=str(i)) is not None for i in range(20))
    postgresql.admin(f"DROP DATABASE {name} WITH (FORCE)")


def activate(store: Store, model: Path) -> int:
    tagger = tagger_of_the_project(model)
    content = starter_calibration(tagger, model, n_min=20).thresholds.to_bytes()
    with store.write() as session:
        project = ensure_project(session, shapes.PROJECT)
        row = ensure_model(session, tagger.name, tagger.hash, classes=tagger.space.classes)
        return write_version(
            session,
            project.id,
            model_id=row.id,
            alpha="0.1",
            method="nc1",
            evidence="blind",
            guarantee="own",
            input_revision=0,
            content=content,
            thresholds=[],
        ).id
