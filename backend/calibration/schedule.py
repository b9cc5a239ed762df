"""When to refit: by counts and by time, never by what the labels or thresholds say (METHODS 8.5)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from backend.domain.flag_rule import RiskRule
from backend.domain.records import Cell, ProjectRecord
from backend.jobs.kinds import Kind, is_pending, queue_refit
from backend.labelstudio.payloads import read_time
from backend.settings import Settings
from backend.store.calibration import first_row_at, has_unplaced, head_revision, load_cells
from backend.store.engine import database_now
from backend.store.overview import VersionSummary, active_summary, version_summaries
from backend.store.projects import lookup_model
from backend.store.state import REFIT, get_state, set_state
from backend.tagger.identity import ModelHeader

LEAST = 20


@dataclass(frozen=True)
class LastFit:
    """What the last refit under a model read: rows that count, up to a revision; `at` is None if nothing was scored."""

    rows: int = 0
    revision: int = 0
    at: datetime | None = None


def refit_is_due(
    *,
    rows: int,
    rows_then: int,
    revision: int,
    revision_then: int,
    since: timedelta | None,
    every_labels: int | None,
    every_minutes: float,
) -> bool:
    """Whether thresholds are to be fitted again.

    After `every_labels` new rows (None: 20, or a tenth of those fitted on if that is more), or after `every_minutes`
    if anything changed at all, an edited label for example. `since` is the time since the last refit, or since the
    first row if there was none.

    >>> common = {"revision": 9, "revision_then": 1, "since": timedelta(minutes=1), "every_minutes": 60.0}
    >>> [refit_is_due(rows=rows, rows_then=400, every_labels=None, **common) for rows in (439, 440)]
    [False, True]
    """
    if revision == revision_then:
        return False
    wanted = every_labels or max(LEAST, rows_then // 10)
    if rows - rows_then >= wanted:
        return True
    return since is not None and since >= timedelta(minutes=every_minutes)


def queue_due_refit(session: Session, project: ProjectRecord, *, header: ModelHeader, settings: Settings) -> bool:
    """Queue a refit of a project under a model if it is due; returns whether it was.

    While one waits or runs nothing is decided: it reads what is there by then. Nor while the labels are being scored
    under a new model: the job that does it refits when it is done. Nor while rows of a release without units wait for
    being scored again: a document's row would count as a long sentence.
    """
    model = lookup_model(session, header.name, header.hash)
    if model is None:
        return False
    if any(is_pending(session, kind, project) for kind in (Kind.RESCORE, Kind.REFIT)):
        return False
    if has_unplaced(session, project.id, model_id=model.id):
        return False
    if follows_other_flags(session, project.id, model_id=model.id, rule=settings.risk_rule):
        queue_refit(session, project, reason="flags follow another rule")
        return True
    revision = head_revision(session, project.id, model_id=model.id)
    last = last_fit(session, project.id, model_id=model.id)
    if revision == last.revision:
        return False
    rows = count_rows(load_cells(session, project.id, model_id=model.id))
    due = refit_is_due(
        rows=rows,
        rows_then=last.rows,
        revision=revision,
        revision_then=last.revision,
        since=None if last.at is None else database_now(session) - last.at,
        every_labels=settings.refit_every_labels,
        every_minutes=settings.refit_every_minutes,
    )
    if due:
        queue_refit(session, project, reason=f"{rows} labels")
    return due


def follows_other_flags(session: Session, project_id: int, *, model_id: int, rule: RiskRule | None) -> bool:
    """Whether flags follow another rule than the settings say: then thresholds are fitted again.

    Not where the newest version follows it, so that whoever went back to an earlier one is not overruled; nor where
    the active one does, of which a refit would make no new version, again and again.
    """
    newest = version_summaries(session, project_id, model_id=model_id, limit=1)
    active = active_summary(session, project_id, model_id=model_id)
    known = [*newest, *([] if active is None else [active])]
    return bool(known) and all(_rule(each) != rule for each in known)


def _rule(version: VersionSummary) -> RiskRule | None:
    levels = version.details.get("risk")
    return None if levels is None else RiskRule(levels["max_error"], bool(levels["sure"]))


def last_fit(session: Session, project_id: int, *, model_id: int) -> LastFit:
    """Return what the last refit of (project, model) read: as its version says, or the note that it made none.

    The newest version, not the active one: whoever went back to an earlier one is not overruled before new labels
    come. Before the first refit the clock runs from the first row, so that few labels are not left waiting for ever.
    """
    noted = get_state(session, project_id, REFIT) or {}
    unchanged = LastFit()
    if noted.get("model") == model_id:
        unchanged = LastFit(int(noted.get("rows", 0)), int(noted.get("revision", 0)), read_time(noted.get("at")))
    (newest,) = version_summaries(session, project_id, model_id=model_id, limit=1) or (None,)
    if newest is not None and newest.input_revision >= unchanged.revision:
        rows = (newest.details.get("skips") or {}).get("labelled", newest.n)
        return LastFit(int(rows), newest.input_revision, newest.created_at)
    if unchanged.at is not None:
        return unchanged
    return LastFit(at=first_row_at(session, project_id, model_id=model_id))


def note_unchanged(session: Session, project_id: int, *, model_id: int, revision: int, rows: int) -> None:
    """Note that a refit read the rows up to a revision and came to the thresholds that are there already."""
    noted = {"model": model_id, "revision": revision, "rows": rows, "at": database_now(session).isoformat()}
    set_state(session, project_id, REFIT, noted)


def count_rows(cells: list[Cell]) -> int:
    """Return how many labelled tasks count, of any kind of evidence."""
    return sum(cell.tasks for cell in cells)
