from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.domain.records import JobRecord, MonitorRecord
from backend.errors import LeaseLost, NotFound, StoreConflict
from backend.store import Store
from backend.store.engine import database_now
from backend.store.jobs import (
    MAX_TRIES,
    acquire_job,
    enqueue_job,
    fail_job,
    failed_jobs,
    finish_job,
    heartbeat,
    list_jobs,
    load_job,
    release_jobs,
    retry_jobs,
    running_job,
    take_job,
)
from backend.store.monitor import QUIET, acknowledge_alarm, list_alarms, load_monitor, raise_alarm, save_monitor
from backend.store.projects import ensure_model, ensure_project, find_project
from backend.store.tables import Alarm, Job

NOW = timedelta(0)


def ask(store: Store, key: str = "refit:1", **more: Any) -> int:
    with store.write() as session:
        return enqueue_job(session, "refit", key=key, **more)


def take(store: Store, holder: str, **more: Any) -> JobRecord | None:
    with store.write() as session:
        return acquire_job(session, holder=holder, **more)


def test_one_holder_and_one_more_run_for_requests_meanwhile(store: Store) -> None:
    first = ask(store)
    assert ask(store) == first, "one waiting run is enough"
    held = take(store, "a")
    assert held is not None
    assert (held.id, held.state, held.fence, held.attempts) == (first, "running", 1, 1)
    again = ask(store)
    assert again != first, "the run may have read its inputs already"
    assert take(store, "b") is None, "of many processes one refits"
    with store.write() as session:
        finish_job(session, held, result={"version": 3})
    second = take(store, "b")
    assert second is not None
    assert second.id == again
    with store.read() as session:
        finished = load_job(session, first)
        assert finished is not None
        assert (finished.state, finished.result) == ("done", {"version": 3})
        assert [job.id for job in list_jobs(session)] == [again, first]
        assert list_jobs(session, project_id=1) == []


def test_other_keys_and_kinds_run_beside(store: Store) -> None:
    ask(store, "refit:1")
    ask(store, "refit:2")
    with store.write() as session:
        enqueue_job(session, "sync", key="sync:1")
    keys = {job.key for job in (take(store, "a", kinds=["refit"]), take(store, "b", kinds=["refit"])) if job}
    assert keys == {"refit:1", "refit:2"}
    assert take(store, "c", kinds=["refit"]) is None
    other = take(store, "c")
    assert other is not None
    assert other.key == "sync:1"


def test_a_job_may_wait_for_its_time(store: Store) -> None:
    ask(store, delay=timedelta(hours=1))
    assert take(store, "a") is None


def test_the_lease_of_a_dead_holder_ends_and_its_ghost_cannot_commit(store: Store) -> None:
    ask(store)
    ghost = take(store, "ghost", lease=NOW)
    assert ghost is not None
    heir = take(store, "heir")
    assert heir is not None
    assert (heir.id, heir.fence, heir.holder) == (ghost.id, 2, "heir")
    assert take(store, "third") is None
    for act in (
        lambda session: heartbeat(session, ghost),
        lambda session: finish_job(session, ghost),
        lambda session: fail_job(session, ghost, ValueError("x")),
    ):
        with pytest.raises(LeaseLost, match="another process took it over"):
            store.run(lambda session, act=act: (ensure_project(session, "9.9"), act(session)))
    with store.write() as session:
        assert find_project(session, "9") is None, "what the ghost wrote was rolled back"
        finish_job(session, heir)
    with pytest.raises(LeaseLost), store.write() as session:
        finish_job(session, heir)


def test_a_heartbeat_keeps_the_lease_and_shows_progress(store: Store) -> None:
    ask(store)
    held = take(store, "a", lease=NOW)
    assert held is not None
    with store.write() as session:
        heartbeat(session, held, done=3, total=10, note="scoring")
        heartbeat(session, held, done=4)
    assert take(store, "b") is None
    with store.read() as session:
        shown = load_job(session, held.id)
    assert shown is not None
    assert (shown.progress_done, shown.progress_total, shown.progress_note) == (4, 10, "scoring")
    assert shown.heartbeat_at is not None
    assert held.heartbeat_at is not None
    assert shown.heartbeat_at >= held.heartbeat_at


def test_failures_wait_or_end(store: Store) -> None:
    ask(store)
    held = take(store, "a")
    assert held is not None
    with store.write() as session:
        fail_job(session, held, ValueError("no model"), retry_after=NOW)
    again = take(store, "a")
    assert again is not None
    assert (again.id, again.attempts, again.error) == (held.id, 2, "ValueError: no model")
    ask(store)
    with store.write() as session:
        fail_job(session, again, ValueError("still none"), retry_after=NOW)
    with store.read() as session:
        failed = load_job(session, again.id)
    assert failed is not None
    assert failed.state == "failed", "a newer request waits already"


@pytest.mark.parametrize("kind", ["postgresql"], indirect=True)  # writers of SQLite queue: nobody comes in between
def test_a_run_that_begins_while_another_is_asked_for_does_not_count_as_waiting(url: str, store: Store) -> None:
    first = ask(store)
    with Store(url) as asking:

        def begin(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            if statement.startswith("INSERT INTO jobs") and not begun:
                begun.append(take(store, "a"))

        begun: list[JobRecord | None] = []
        sa.event.listen(asking.engine, "after_cursor_execute", begin)
        second = ask(asking)
    assert begun[0] is not None
    assert begun[0].id == first
    assert second != first


@pytest.mark.parametrize("kind", ["postgresql"], indirect=True)  # writers of SQLite queue: nobody comes in between
def test_a_request_that_arrives_while_a_run_fails_takes_its_place(url: str, store: Store) -> None:
    ask(store)
    held = take(store, "a")
    assert held is not None
    with Store(url) as failing:
        sa.event.listen(failing.engine, "savepoint", lambda *_: asked.append(ask(store)))
        asked: list[int] = []
        with failing.write() as session:
            fail_job(session, held, ValueError("no model"), retry_after=NOW)
    with store.read() as session:
        states = {job.id: (job.state, job.error) for job in list_jobs(session)}
    assert states == {held.id: ("failed", "ValueError: no model"), asked[0]: ("queued", None)}


def let_go(store: Store, *, seconds: float) -> None:
    """As if every holder had died so long ago."""
    with store.write() as session:
        past = database_now(session) - timedelta(seconds=seconds)
        session.execute(sa.update(Job).where(Job.state == "running").values(lease_until=past))


def test_a_job_that_its_holders_died_of_rests_stands_in_line_again_and_fails_in_the_end(store: Store) -> None:
    poison = ask(store, "refit:1")
    assert take(store, "a") is not None
    let_go(store, seconds=1)
    first = take(store, "a")
    assert first is not None
    assert first.id == poison, "the first holder may just have been restarted"
    let_go(store, seconds=1)
    assert take(store, "a") is None, "it rests"
    let_go(store, seconds=5)
    with store.write() as session:
        asked = database_now(session) - timedelta(minutes=1)
        session.execute(sa.update(Job).where(Job.id == ask_in(session, "refit:2")).values(created_at=asked))
    other = take(store, "a")
    assert other is not None
    assert other.key == "refit:2", "it was asked for before the other was due again"
    with store.write() as session:
        finish_job(session, other)
    for attempt in range(3, MAX_TRIES + 1):
        let_go(store, seconds=400)
        held = take(store, "a")
        assert held is not None
        assert (held.id, held.attempts) == (poison, attempt)
    let_go(store, seconds=400)
    assert take(store, "a") is None
    with store.read() as session:
        (failed,) = failed_jobs(session)
    assert (failed.id, failed.state) == (poison, "failed")
    assert failed.error == f"the process that ran this job ended {MAX_TRIES} times without a word"
    assert store.run(retry_jobs) == 1
    again = take(store, "a")
    assert again is not None
    assert (again.id, again.attempts) == (poison, 1)


def ask_in(session: Session, key: str) -> int:
    return enqueue_job(session, "refit", key=key)


def test_a_job_that_gets_on_never_fails_and_a_replaced_one_is_not_asked_for_again(store: Store) -> None:
    ask(store)
    for _ in range(MAX_TRIES + 3):
        held = take(store, "a")
        assert held is not None
        with store.write() as session:
            heartbeat(session, held, done=200)
        let_go(store, seconds=400)
    held = take(store, "a")
    assert held is not None
    with store.write() as session:
        fail_job(session, held, ValueError("x"), attempts=1)
    with store.read() as session:
        assert [(job.id, job.attempts) for job in failed_jobs(session)] == [(held.id, 1)]
    ask(store)
    with store.read() as session:
        assert failed_jobs(session) == []
    assert store.run(retry_jobs) == 0


def test_monitors_take_each_step_once(store: Store) -> None:
    with store.write() as session:
        project = ensure_project(session, "1.1").id
        model = ensure_model(session, "m", "0" * 64, classes=["PER"]).id
        assert load_monitor(session, project, model_id=model, kind="martingale") is None
        first = MonitorRecord("martingale", "", 0, 1, 1.5, b"\x00s")
        saved = save_monitor(session, project, model_id=model, monitor=first)
    assert saved.revision == 1
    with store.write() as session:
        assert load_monitor(session, project, model_id=model, kind="martingale") == saved
        second = save_monitor(session, project, model_id=model, monitor=saved)
        assert second.revision == 2
    for stale in (first, saved):
        with pytest.raises(StoreConflict, match="got a newer one"), store.write() as session:
            save_monitor(session, project, model_id=model, monitor=stale)


def test_alarms_are_raised_once_and_kept(store: Store) -> None:
    with store.write() as session:
        project = ensure_project(session, "1.1").id
        model = ensure_model(session, "m", "0" * 64, classes=["PER"]).id
        options: dict[str, Any] = {"model_id": model, "kind": "martingale", "stratum": "en"}
        alarm = raise_alarm(session, project, **options, value=21.0, message="look at new texts")
        assert raise_alarm(session, project, **options, value=30.0, message="again") == alarm
        acknowledge_alarm(session, project, alarm_id=alarm)
        assert raise_alarm(session, project, **options, value=35.0, message="still so") == alarm, "somebody knows"
        session.execute(sa.update(Alarm).values(acknowledged_at=database_now(session) - QUIET))
        assert raise_alarm(session, project, **options, value=40.0, message="new") != alarm
        with pytest.raises(NotFound):
            acknowledge_alarm(session, project, alarm_id=99)
    with store.read() as session:
        assert [each.message for each in list_alarms(session, project)] == ["new", "look at new texts"]


def test_a_job_is_taken_at_once_unless_somebody_holds_it(store: Store) -> None:
    def now(holder: str) -> JobRecord | None:
        with store.write() as session:
            return take_job(session, "publish", key="publish:1", holder=holder, lease=timedelta(minutes=1))

    ask(store, "publish:2")
    held = now("preannotate:here:1")
    assert held is not None
    assert (held.kind, held.key, held.state) == ("publish", "publish:1", "running")
    assert now("preannotate:here:2") is None
    with store.read() as session:
        running = running_job(session, key="publish:1")
        assert running is not None
        assert running.holder == "preannotate:here:1"
        assert len(list_jobs(session)) == 2, "who has to wait asks for nothing"
    with store.write() as session:
        fail_job(session, held, NotFound("gone"), retry_after=timedelta(hours=1))
    assert take(store, "worker", kinds=["publish"]) is None, "a worker waits the pause out"
    again = now("preannotate:here:2")
    assert again is not None
    assert again.id == held.id
    with store.write() as session:
        assert release_jobs(session, holder="preannotate:here:2") == 1
    with store.read() as session:
        assert running_job(session, key="publish:1") is None
    taken = now("preannotate:here:3")
    assert taken is not None
    assert (taken.id, taken.fence) == (held.id, 3)
    with store.read() as session:
        assert len(list_jobs(session)) == 2, "a run that was given up is gone on with, not asked for again"
    with pytest.raises(LeaseLost), store.write() as session:
        heartbeat(session, again)
