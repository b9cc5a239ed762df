"""The database: reachable, of this release's schema, and emptied of events and jobs by somebody."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import sqlalchemy as sa

from backend.doctor.findings import Finding, fail, listed, ok, skipped, warn
from backend.doctor.health import PATIENCE
from backend.errors import BackendError, SchemaMismatch, StoreBusy, StoreError
from backend.settings import Settings, database_url
from backend.store import Store
from backend.store.aside import list_aside
from backend.store.events import inbox_depth, list_events
from backend.store.schema import schema_differences, schema_state
from backend.store.tables import Event, Job

_WAIT = 5.0  # seconds for another process's lock
_LATE = timedelta(minutes=5)  # a lease that ended so long ago was not taken over
_RECENT = timedelta(days=1)
_AFTER = ("schema", "worker", "inbox", "scoring")


def check_database(settings: Settings) -> tuple[list[Finding], Store | None]:
    """Look at the database; returns it opened if the other checks can use it. A file that is absent is not made."""
    try:
        # Opening makes the directory of a file, so an absent file is judged first.
        absent = _absent(settings)
        if absent is not None:
            return [absent, *(skipped(check, "there is no database yet") for check in _AFTER)], None
        store = Store(settings.database_url, wait=_WAIT)
    except (BackendError, OSError) as error:
        return _unusable(fail("database", str(error), "correct SURESPAN_DATABASE_URL")), None
    try:
        state = schema_state(store)
        with store.write():
            pass  # a lock for writing is to be had
        findings = [ok("database", f"{store.name} can be read and written")]
    except StoreBusy as error:
        store.close()
        remedy = "end the process that holds it: a long backup, or one that hangs"
        return _unusable(fail("database", str(error), remedy)), None
    except (StoreError, SchemaMismatch) as error:
        store.close()
        return _unusable(fail("database", str(error), "check that it runs, its address and its permissions")), None
    if not state.ready:
        if state.known and not (state.current is None and not state.empty):
            remedy = "run `surespan db upgrade` (make a copy first with `surespan db backup`)"
        elif state.known:
            remedy = "name an empty database in SURESPAN_DATABASE_URL: this one holds tables of something else"
        else:
            remedy = "a newer Surespan wrote it: install that version, or restore a copy made before the upgrade"
        findings.append(fail("schema", f"expected schema {state.head}, got {state.current or 'none'}", remedy))
        store.close()
        return [*findings, *(skipped(check, "the schema does not fit") for check in _AFTER[1:])], None
    differences = schema_differences(store)
    if differences:
        findings.append(
            fail(
                "schema",
                f"schema {state.current}, but {len(differences)} tables or columns differ from it",
                "`surespan db check` lists them; restore a copy, or undo what was changed by hand",
            )
        )
    else:
        findings.append(ok("schema", f"{state.current}, which this release works with"))
    return findings, store


def check_inbox(store: Store) -> Finding:
    """Look for events that were set aside."""
    with store.read() as session:
        depth = inbox_depth(session)
        dead = list_events(session, "dead", limit=20)
    if depth["dead"]:
        kinds = sorted({f"{each.action} ({(each.error or 'unknown').split(':')[0][:80]})" for each in dead})
        return fail(
            "inbox",
            f"{depth['dead']} event{'s' if depth['dead'] > 1 else ''} failed for good: {listed(kinds, 4)}",
            "the worker's log names the cause; after the fix run `surespan sync --dead`, which retries them",
        )
    return ok("inbox", f"{depth['pending']} events waiting, none dead")


def check_scoring(store: Store) -> Finding:
    """Look for labels that nobody tries to score any more."""
    with store.read() as session:
        (labels,) = [each for each in list_aside(session) if each.kind == "label"]
    if not labels.count:
        return ok("scoring", "no label was set aside")
    return warn(
        "scoring",
        f"{labels.count} label{'s were' if labels.count > 1 else ' was'} set aside: {listed(labels.reasons, 4)}",
        "the worker's log names task and cause; after the fix run `surespan sync --dead`, which retries them",
    )


def check_worker(store: Store, settings: Settings) -> list[Finding]:
    """Look whether somebody processes events and jobs: what is due must not wait long."""
    now = datetime.now(UTC)
    with store.read() as session:
        due = session.execute(sa.select(sa.func.min(Event.due_at)).where(Event.state == "pending")).scalar_one()
        jobs = session.execute(
            sa.select(Job.id, Job.kind, Job.state, Job.run_after, Job.lease_until, Job.finished_at, Job.error)
            .where(Job.state.in_(["queued", "running", "failed"]))
            .order_by(Job.id.desc())
            .limit(200)
        ).all()
    inside = settings.worker if settings.worker is not None else store.is_sqlite
    start = "start `surespan serve`, which has the worker inside" if inside else "start `surespan worker`"
    remedy = f"{start}; if it runs, its log says why it waits"
    findings = []
    if due is not None and now - due > PATIENCE:
        minutes = int((now - due).total_seconds() // 60)
        findings.append(fail("worker", f"an event has been due for {minutes:,} minutes", remedy))
    lost = [row for row in jobs if row.state == "running" and row.lease_until and now - row.lease_until > _LATE]
    if lost:
        named = listed([f"{row.kind} {row.id}" for row in lost])
        findings.append(fail("worker", f"jobs of a worker that is gone were not taken over: {named}", remedy))
    running = any(row.state == "running" and row not in lost for row in jobs)
    late = [row for row in jobs if row.state == "queued" and now - row.run_after > PATIENCE]
    if late and not running:
        named = listed([f"{row.kind} {row.id}" for row in late])
        findings.append(fail("worker", f"jobs have been due for more than ten minutes: {named}", remedy))
    failed = [row for row in jobs if row.state == "failed" and row.finished_at and now - row.finished_at < _RECENT]
    if failed:
        named = listed([f"{row.kind} {row.id} ({(row.error or 'unknown').split(':')[0][:80]})" for row in failed], 4)
        findings.append(
            warn(
                "worker",
                f"jobs failed for good in the last day: {named}",
                "see the worker's log; then `surespan sync --dead`",
            )
        )
    waiting = sum(row.state == "queued" for row in jobs)
    return findings or [ok("worker", f"nothing is overdue; {waiting} jobs waiting")]


def _absent(settings: Settings) -> Finding | None:
    url = database_url(settings.database_url)
    if url.get_backend_name() != "sqlite":
        return None
    path = Path(str(url.database)).absolute()
    if path.exists():
        return None
    above = path.parent
    while not above.exists() and above != above.parent:
        above = above.parent
    if above.is_dir() and os.access(above, os.W_OK):
        return ok("database", f"{path} does not exist yet; the first command that needs it creates it")
    return fail(
        "database",
        f"{path} does not exist and cannot be created: {above} is not a directory that may be written",
        "correct SURESPAN_DATABASE_URL, or the directory's permissions",
    )


def _unusable(finding: Finding) -> list[Finding]:
    return [finding, *(skipped(check, "the database cannot be used") for check in _AFTER)]
