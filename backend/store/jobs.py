"""Jobs that one process at a time holds, by a lease in the database.

A holder that dies stops renewing and the lease runs out; the next holder gets a greater fence. Work that must happen
once is committed together with `finish_job`, which checks the fence under a row lock: a holder that was only asleep
cannot commit after it has been replaced. Time is the database's, so clocks of machines need not agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, aliased

from backend.domain.records import JobRecord
from backend.domain.text import plain
from backend.errors import LeaseLost
from backend.store.engine import database_now, is_postgresql
from backend.store.events import pause_after
from backend.store.tables import Job
from backend.store.upsert import insert

LEASE = timedelta(seconds=60)
MAX_TRIES = 10
GETTING_ON = 3  # tries that count at most of a job that got something done: it rests between holders, and never fails
# An arbitrary constant that names "choosing a job" among a server's advisory locks.
_CHOOSING = 0x5375_7265_6A6F_6273


def enqueue_job(
    session: Session,
    kind: str,
    *,
    key: str,
    project_id: int | None = None,
    payload: Mapping[str, Any] | None = None,
    delay: timedelta = timedelta(0),
) -> int:
    """Ask for a run of `key`; when one is waiting already, that is the one. Returns its id.

    A run in progress does not count as waiting: it may have read its inputs before this request.
    """
    now = database_now(session)
    row = {
        "kind": kind,
        "key": key,
        "project_id": project_id,
        "payload": dict(payload or {}),
        "state": "queued",
        "run_after": now + delay,
        "created_at": now,
        "fence": 0,
        "attempts": 0,
        "progress_done": 0,
        "progress_note": "",
    }
    asked = (
        insert(session, Job)
        .values(row)
        .on_conflict_do_nothing(index_elements=["key"], index_where=sa.text("state = 'queued'"))
        .returning(Job.id)
    )
    waiting = sa.select(Job.id).where(Job.key == key, Job.state == "queued")
    while True:
        job_id = session.execute(asked).scalar_one_or_none()
        job_id = session.execute(waiting).scalar_one_or_none() if job_id is None else job_id
        if job_id is not None:
            return int(job_id)
        # The run that was waiting has begun between the two statements: it does not count any more.


def set_payload(session: Session, job_id: int, payload: Mapping[str, Any]) -> None:
    """Change what a job that still waits is to do."""
    session.execute(
        sa.update(Job).where(Job.id == job_id, Job.state == "queued").values(payload=dict(payload)),
        execution_options={"synchronize_session": False},
    )


def acquire_job(
    session: Session,
    *,
    holder: str,
    kinds: Iterable[str] | None = None,
    key: str | None = None,
    lease: timedelta = LEASE,
    now: datetime | None = None,
) -> JobRecord | None:
    """Take a job whose holder's lease has run out, or the oldest waiting one whose key nobody runs.

    Of these kinds, and of this key, where they are given. None when there is none. On PostgreSQL an advisory lock makes
    choosing exclusive for this short transaction. A job whose holders died rests a while and then stands in line again;
    after `MAX_TRIES` it has failed.
    """
    _choose_alone(session)
    return _acquire(session, holder=holder, kinds=kinds, key=key, lease=lease, now=now or database_now(session))


def _choose_alone(session: Session) -> None:
    if is_postgresql(session):
        session.execute(sa.select(sa.func.pg_advisory_xact_lock(_CHOOSING)))


def _acquire(
    session: Session,
    *,
    holder: str,
    kinds: Iterable[str] | None,
    key: str | None,
    lease: timedelta,
    now: datetime,
    at_once: bool = False,
) -> JobRecord | None:
    other = aliased(Job)
    rested = [
        sa.and_(Job.attempts == tries if tries < MAX_TRIES else Job.attempts >= tries, Job.lease_until < now - rest)
        for tries, rest in ((tries, pause_after(tries)) for tries in range(MAX_TRIES + 1))
    ]
    expired = sa.and_(Job.state == "running", Job.lease_until < now if at_once else sa.or_(*rested))
    idle = ~sa.select(other.id).where(other.key == Job.key, other.state == "running").exists()
    waiting = sa.and_(Job.state == "queued", Job.run_after <= now, idle)
    # The oldest first; what was taken twice stands behind all that were asked for before it was due again.
    since = sa.case((Job.attempts < 2, Job.created_at), (Job.state == "queued", Job.run_after), else_=Job.lease_until)
    query = sa.select(Job).where(sa.or_(expired, waiting)).order_by(since, Job.id).limit(1)
    if kinds is not None:
        query = query.where(Job.kind.in_(list(kinds)))
    if key is not None:
        query = query.where(Job.key == key)
    while True:
        row = session.execute(query.with_for_update(of=Job, skip_locked=True)).scalar_one_or_none()
        if row is None:
            return None
        if row.state == "queued" or row.attempts < MAX_TRIES:
            break
        row.error = row.error or f"the process that ran this job ended {row.attempts} times without a word"
        row.state, row.finished_at, row.holder, row.lease_until = "failed", now, None, None
        session.flush()
    row.state, row.holder, row.fence = "running", plain(holder, 200), row.fence + 1
    row.attempts += 1
    row.lease_until, row.heartbeat_at = now + lease, now
    row.started_at = row.started_at or now
    session.flush()
    return _record(row)


def take_job(
    session: Session, kind: str, *, key: str, holder: str, project_id: int | None = None, lease: timedelta = LEASE
) -> JobRecord | None:
    """Ask for a run of `key` and take it at once, whatever pause it was waiting out: somebody wants it done now.

    None while another process holds one; then nothing is asked for.
    """
    _choose_alone(session)
    now = database_now(session)
    if running_job(session, key=key, now=now) is not None:
        return None
    left = session.execute(sa.select(Job.id).where(Job.key == key, Job.state == "running")).first()
    if left is None:  # a run whose lease has ended is gone on with
        enqueue_job(session, kind, key=key, project_id=project_id)
    session.execute(sa.update(Job).where(Job.key == key, Job.state == "queued").values(run_after=now))
    session.execute(sa.update(Job).where(Job.key == key, Job.state == "running").values(attempts=0))
    return _acquire(session, holder=holder, kinds=[kind], key=key, lease=lease, now=now, at_once=True)


def running_job(session: Session, *, key: str, now: datetime | None = None) -> JobRecord | None:
    """Return the run of `key` that a process holds now, None when no lease is in force."""
    now = now or database_now(session)
    held = sa.select(Job).where(Job.key == key, Job.state == "running", Job.lease_until >= now).limit(1)
    row = session.execute(held).scalar_one_or_none()
    return None if row is None else _record(row)


def pending_states(session: Session, *, key: str) -> frozenset[str]:
    """Return in which of the states `queued` and `running` there is a run of `key`, whoever's lease has ended."""
    query = sa.select(Job.state).where(Job.key == key, Job.state.in_(["queued", "running"]))
    return frozenset(session.execute(query).scalars())


def heartbeat(
    session: Session,
    job: JobRecord,
    *,
    lease: timedelta = LEASE,
    done: int | None = None,
    total: int | None = None,
    note: str | None = None,
    afresh: bool = False,
) -> None:
    """Renew the lease and report progress; who gets on is not given up after `MAX_TRIES` holders.

    Args:
        afresh: the next holder begins again, so that what is done now is no reason to go on trying.

    Raises:
        LeaseLost: when another process holds the job: stop working.
    """
    row = _held(session, job)
    now = database_now(session)
    row.lease_until, row.heartbeat_at = now + lease, now
    row.progress_done = row.progress_done if done is None else done
    row.attempts = min(row.attempts, GETTING_ON) if done and not afresh else row.attempts
    row.progress_total = row.progress_total if total is None else total
    row.progress_note = row.progress_note if note is None else plain(note, 200)
    session.flush()


def finish_job(session: Session, job: JobRecord, *, result: Mapping[str, Any] | None = None) -> None:
    """Mark the job done; call it in the transaction that commits its work, so that both happen or neither.

    Raises:
        LeaseLost: when another process holds the job; leaving the transaction by this error undoes the work.
    """
    row = _held(session, job)
    row.state, row.finished_at, row.result = "done", database_now(session), dict(result or {})
    row.error = None
    session.flush()


def fail_job(
    session: Session,
    job: JobRecord,
    error: BaseException,
    *,
    retry_after: timedelta | None = None,
    attempts: int | None = None,
) -> None:
    """Record a failure; with `retry_after` the job waits and is tried again, unless a newer request waits already.

    Args:
        attempts: how many count from now on, where this one was not the job's fault.

    Raises:
        LeaseLost: when another process holds the job.
    """
    row = _held(session, job)
    now = database_now(session)
    row.error, row.holder, row.lease_until = plain(f"{type(error).__name__}: {error}", 1000), None, None
    row.attempts = row.attempts if attempts is None else attempts
    if retry_after is not None and _queue_again(session, row, now + retry_after):
        return
    row.state, row.finished_at = "failed", now
    session.flush()


def _queue_again(session: Session, row: Job, at: datetime) -> bool:
    """Let the run wait once more; False when a newer request waits, which the index decides in the same moment."""
    try:
        with session.begin_nested():
            row.state, row.run_after = "queued", at
            session.flush()
    except IntegrityError:
        return False
    return True


def release_jobs(session: Session, *, holder: str) -> int:
    """End the leases of a holder of this name: call it when the only one of that name starts again."""
    held = sa.update(Job).where(Job.state == "running", Job.holder == plain(holder, 200))
    result = session.execute(held.values(lease_until=database_now(session) - timedelta(seconds=1)))
    return int(getattr(result, "rowcount", 0))


def count_jobs(session: Session) -> dict[tuple[str, str], int]:
    """Return how many jobs wait, run or have failed, by (kind, state)."""
    rows = session.execute(
        sa.select(Job.kind, Job.state, sa.func.count())
        .where(Job.state.in_(["queued", "running", "failed"]))
        .group_by(Job.kind, Job.state)
    )
    return {(kind, state): int(count) for kind, state, count in rows}


def failed_jobs(session: Session, *, project_id: int | None = None, limit: int = 100) -> list[JobRecord]:
    """Return jobs that failed and that no newer request of their key has replaced, the newest first."""
    query = _failed().order_by(Job.id.desc()).limit(limit)
    if project_id is not None:
        query = query.where(Job.project_id == project_id)
    return [_record(row) for row in session.execute(query).scalars()]


def retry_jobs(session: Session, *, project_id: int | None = None) -> int:
    """Let the jobs that `failed_jobs` names wait for their turn again; returns how many."""
    query = _failed()
    if project_id is not None:
        query = query.where(Job.project_id == project_id)
    now = database_now(session)
    again = 0
    for row in session.execute(query.order_by(Job.id).with_for_update(of=Job)).scalars().all():
        row.attempts, row.finished_at = 0, None
        again += _queue_again(session, row, now)
    session.flush()
    return again


def _failed() -> sa.Select[Job]:
    newer = aliased(Job)
    replaced = sa.select(newer.id).where(newer.key == Job.key, newer.id > Job.id).exists()
    return sa.select(Job).where(Job.state == "failed", ~replaced)


def load_job(session: Session, job_id: int) -> JobRecord | None:
    """Return one job."""
    row = session.get(Job, job_id)
    return None if row is None else _record(row)


def list_jobs(session: Session, *, project_id: int | None = None, limit: int = 50) -> list[JobRecord]:
    """Return the newest jobs, newest first."""
    query = sa.select(Job).order_by(Job.id.desc()).limit(limit)
    if project_id is not None:
        query = query.where(Job.project_id == project_id)
    return [_record(row) for row in session.execute(query).scalars()]


def last_job(session: Session, kind: str, *, project_id: int) -> JobRecord | None:
    """Return the newest job of a kind for a project, None when there was none."""
    query = sa.select(Job).where(Job.kind == kind, Job.project_id == project_id).order_by(Job.id.desc()).limit(1)
    row = session.execute(query).scalar_one_or_none()
    return None if row is None else _record(row)


def _held(session: Session, job: JobRecord) -> Job:
    row = session.execute(
        sa.select(Job)
        .where(Job.id == job.id, Job.state == "running", Job.fence == job.fence)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).scalar_one_or_none()
    if row is None:
        raise LeaseLost(f"expected to hold job {job.id} ({job.key}), got word that another process took it over")
    return row


def _record(row: Job) -> JobRecord:
    return JobRecord(
        id=row.id,
        kind=row.kind,
        key=row.key,
        project_id=row.project_id,
        state=row.state,
        payload=row.payload,
        holder=row.holder,
        fence=row.fence,
        attempts=row.attempts,
        progress_done=row.progress_done,
        progress_total=row.progress_total,
        progress_note=row.progress_note,
        lease_until=row.lease_until,
        heartbeat_at=row.heartbeat_at,
        result=row.result,
        error=row.error,
    )
