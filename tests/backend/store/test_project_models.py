"""The models of projects in either database: one serves, files are whole, and none goes while something names it."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.domain.project_model import ProjectModel, State
from backend.domain.records import Served
from backend.errors import NotFound, StoreConflict
from backend.store import Store
from backend.store.project_models import (
    CHUNK,
    KEPT,
    find_file,
    find_model,
    list_models,
    promote_model,
    prune_models,
    read_file,
    register_model,
    retire_model,
    serving_model,
    store_file,
    store_path,
)
from backend.store.projects import ensure_model, ensure_project, ensure_task
from backend.store.retention import forget_project
from backend.store.schema import downgrade, schema_differences, upgrade
from backend.store.served import record_served
from backend.store.tables import ModelChunk, ModelFile, ServedSet
from backend.store.tables import ProjectModel as Row
from tests.support.populated import LIST

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def digest(number: int) -> str:
    return f"{number:064x}"


def register(session: Session, project: int, number: int, **others: Any) -> ProjectModel:
    given = {"name": "own", "classes": ["Drug", "Symptom"], "base": "nothing", "labels": 20, "asked_by": "ann"}
    return register_model(session, project, model_hash=digest(number), **(given | others))


@pytest.fixture
def project(store: Store) -> int:
    with store.write() as session:
        return ensure_project(session, "7.1").id


def test_what_is_registered_is_a_candidate_until_it_is_promoted(store: Store, project: int) -> None:
    with store.write() as session:
        made = register(
            session,
            project,
            1,
            labels_until=NOON,
            recipe={"epochs": 3},
            figures={"f1": 0.5},
            why="20 labels",
        )
        store_file(session, digest(1), b"weights")
    assert (made.state, made.labels, made.labels_until, made.version) == (State.CANDIDATE, 20, NOON, "own@00000000")
    assert (made.recipe, made.figures, made.classes) == ({"epochs": 3}, {"f1": 0.5}, ("Drug", "Symptom"))
    with store.read() as session:
        assert serving_model(session, project) is None
        assert list_models(session, project) == [made]
        assert find_model(session, project, digest(2)) is None
    with store.write() as session:
        assert register(session, project, 1, labels=99) == made  # training that was run again
        promoted = promote_model(session, project, digest(1), why="the first model")
    assert (promoted.state, promoted.why) == (State.SERVING, "the first model")
    assert promoted.promoted_at is not None
    with store.read() as session:
        assert serving_model(session, project) == promoted
    with store.write() as session:
        assert promote_model(session, project, digest(1), why="again") == promoted
        assert register(session, project, 1).state is State.SERVING


def test_the_next_one_retires_the_one_before_and_the_way_back_is_the_same(store: Store, project: int) -> None:
    with store.write() as session:
        for number in (1, 2):
            register(session, project, number)
            store_file(session, digest(number), b"weights")
            promote_model(session, project, digest(number), why=f"model {number}")
    with store.read() as session:
        states = {each.model_hash: (each.state, each.why) for each in list_models(session, project)}
    assert states == {
        digest(2): (State.SERVING, "model 2"),
        digest(1): (State.RETIRED, f"followed by {digest(2)[:8]}"),
    }
    with store.write() as session:
        back = promote_model(session, project, digest(1), why="back")
        assert (back.state, back.retired_at) == (State.SERVING, None)
        assert find_model(session, project, digest(2)).state is State.RETIRED  # type: ignore[union-attr]
        gone = retire_model(session, project, digest(1), why="the settings' model again")
        assert retire_model(session, project, digest(1), why="twice") == gone
        assert serving_model(session, project) is None


def test_what_cannot_serve_is_refused(store: Store, project: int) -> None:
    with pytest.raises(NotFound, match="which it does not have"), store.write() as session:
        promote_model(session, project, digest(1), why="")
    with store.write() as session:
        register(session, project, 1)
    with pytest.raises(NotFound, match="expected the file"), store.write() as session:
        promote_model(session, project, digest(1), why="")
    with pytest.raises(NotFound, match="which does not exist"), store.write() as session:
        promote_model(session, 999, digest(1), why="")


def test_the_database_itself_allows_one_serving_model_of_a_project(store: Store, project: int) -> None:
    with store.write() as session:
        for number in (1, 2):
            register(session, project, number)
        other = ensure_project(session, "8.1").id
        register(session, other, 1)
    serve = sa.update(Row).values(state="serving")
    with store.write() as session:  # one each is fine
        session.execute(serve.where(Row.model_hash == digest(1)))
    with pytest.raises(StoreConflict), store.write() as session:
        session.execute(serve.where(Row.model_hash == digest(2)))
    with pytest.raises(StoreConflict), store.write() as session:
        session.execute(sa.update(Row).values(state="wild"))


_PROMOTING = """
import sys
from backend.store import Store
from backend.store.project_models import promote_model
url, project, digest = sys.argv[1], int(sys.argv[2]), sys.argv[3]
with Store(url) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(30):
        store.run(lambda session: promote_model(session, project, digest, why=f"{digest[-1]} {number}"))
    print("done")
"""


@pytest.mark.heavy
def test_two_processes_that_promote_at_once_leave_one_serving(store: Store, project: int, url: str) -> None:
    with store.write() as session:
        for number in (1, 2):
            register(session, project, number)
            store_file(session, digest(number), b"weights")
    running = [
        subprocess.Popen(
            [sys.executable, "-c", _PROMOTING, url, str(project), digest(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in (1, 2)
    ]
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in running:
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out) == (0, "done\n"), err
    with store.read() as session:
        states = sorted(each.state for each in list_models(session, project))
    assert states == ["retired", "serving"]


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, 2 * CHUNK + 5])
def test_a_file_comes_back_byte_for_byte(store: Store, size: int) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    with store.write() as session:
        store_file(session, digest(1), b"another one that was there before" * CHUNK)
        store_file(session, digest(1), content[:size])
    with store.read() as session:
        assert read_file(session, digest(1)) == content[:size]
        assert read_file(session, digest(2)) is None
        kept = find_file(session, digest(1))
        pieces = session.execute(sa.select(sa.func.count()).select_from(ModelChunk)).scalar_one()
    assert kept is not None
    assert (kept.size, kept.path) == (size, None)
    assert pieces == -(-size // CHUNK)


def test_a_file_elsewhere_is_named_by_its_path(store: Store) -> None:
    with store.write() as session:
        store_file(session, digest(1), b"small")
        store_path(session, digest(1), "/models/großes Modell", size=10**10, sha256=digest(3))
    with store.read() as session:
        kept = find_file(session, digest(1))
        assert read_file(session, digest(1)) is None
    assert kept is not None
    assert (kept.path, kept.size, kept.sha256) == ("/models/großes Modell", 10**10, digest(3))


def age_files(session: Session) -> None:
    """Let all files have been stored long ago."""
    session.execute(sa.update(ModelFile).values(stored_at=NOON))


def served(session: Session, project: int, number: int, *, unit: str = "") -> None:
    """A set that a model made, kept."""
    task = ensure_task(session, project, external_id=str(number), text=f"text {number}")
    details = {"source": f"stored:{digest(number)}", "hash": digest(number) if not unit else digest(number + 500)}
    model = ensure_model(session, "own", digest(number + 100), classes=["Drug"], details=details)
    shown = Served(task.id, model.id, None, False, "en/1-10", "*", "none", 0, 1.0, False, 1, 1, LIST, NOON)
    record_served(session, [shown])


def test_files_of_retired_models_go_when_nothing_names_them(store: Store, project: int) -> None:
    count = KEPT + 4
    with store.write() as session:
        for number in range(1, count + 1):
            register(session, project, number)
            store_file(session, digest(number), b"weights")
            promote_model(session, project, digest(number), why="next")
        register(session, project, count + 1)
        store_file(session, digest(count + 1), b"a candidate")
        served(session, project, 2)
        served(session, project, 3, unit="task")  # over whole texts it has another hash
    with store.write() as session:
        assert prune_models(session) == []  # stored a moment ago: whoever stored it may not have registered it yet
        age_files(session)
        gone = [file.model_hash for file in prune_models(session)]
    assert gone == [digest(1)]
    with store.read() as session:
        assert len(list_models(session, project)) == count + 1  # what was registered stays registered
        assert find_file(session, digest(1)) is None
        left = session.execute(sa.select(ModelChunk.model_hash).order_by(ModelChunk.model_hash)).scalars().all()
    assert left == [digest(number) for number in range(2, count + 2)]
    with store.write() as session:
        session.execute(sa.delete(ServedSet))
        assert [file.model_hash for file in prune_models(session)] == [digest(2), digest(3)]
        assert prune_models(session) == []


def test_a_file_that_another_project_serves_stays(store: Store, project: int) -> None:
    with store.write() as session:
        other = ensure_project(session, "8.1").id
        for number in range(1, KEPT + 3):
            register(session, project, number)
            store_file(session, digest(number), b"weights")
            promote_model(session, project, digest(number), why="next")
        register(session, other, 1)
        promote_model(session, other, digest(1), why="same labels")
        age_files(session)
        assert prune_models(session) == []


def test_a_project_that_is_forgotten_leaves_no_file_behind(store: Store, project: int) -> None:
    with store.write() as session:
        register(session, project, 1)
        store_file(session, digest(1), b"weights")
        promote_model(session, project, digest(1), why="first")
        forget_project(session, ensure_project(session, "7.1"))
        age_files(session)
        assert [file.model_hash for file in prune_models(session)] == [digest(1)]


def test_models_that_there_are_do_not_keep_the_schema_from_going_back(store: Store, project: int) -> None:
    with store.write() as session:
        register(session, project, 1, labels_until=NOON + timedelta(days=1))
        store_file(session, digest(1), b"weights")
        promote_model(session, project, digest(1), why="first")
    downgrade(store, "0014")
    with store.read() as session:
        assert "project_models" not in sa.inspect(session.connection()).get_table_names()
    upgrade(store)
    assert schema_differences(store) == []
    with store.read() as session:
        assert list_models(session, project) == []
