"""Threshold versions: written and activated in one transaction, never changed, always one active."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.domain.records import ActivationRecord, ThresholdRow, VersionRecord
from backend.domain.text import plain
from backend.errors import NotFound, StoreConflict
from backend.store.engine import database_now
from backend.store.tables import Activation, ActiveVersion, Threshold, ThresholdVersion
from backend.store.upsert import insert


def write_version(
    session: Session,
    project_id: int,
    *,
    model_id: int,
    alpha: str,
    method: str,
    evidence: str,
    guarantee: str,
    input_revision: int,
    content: bytes,
    thresholds: Sequence[ThresholdRow],
    n: int | None = None,
    details: Mapping[str, Any] | None = None,
    reason: str = "refit",
    activate: bool = True,
) -> VersionRecord:
    """Write a new version and activate it: both are there after the commit, or neither (METHODS 8.6).

    Args:
        input_revision: the high-water mark of the rows it was fitted on (`calibration.head_revision`).
        content: the library's serialised thresholds object, kept as it is.
        thresholds: one summary per pool or class.
        n: rows that it was fitted on; None takes the sum over pools, which counts rows of two pools twice.
    """
    row = ThresholdVersion(
        project_id=project_id,
        model_id=model_id,
        alpha=alpha,
        method=method,
        evidence=evidence,
        guarantee=guarantee,
        input_revision=input_revision,
        n=sum(each.n for each in thresholds if each.kind == "pool") if n is None else n,
        pools=len(thresholds),
        content=content,
        content_hash=hashlib.sha256(content).hexdigest(),
        details=dict(details or {}),
        created_at=database_now(session),
    )
    session.add(row)
    session.flush()
    if thresholds:
        session.execute(
            sa.insert(Threshold),
            [
                {
                    "version_id": row.id,
                    "kind": each.kind,
                    "pool": each.pool,
                    "n": each.n,
                    "n_infinite": each.n_infinite,
                    "tau": each.tau,
                }
                for each in thresholds
            ],
        )
    if activate:
        activate_version(session, row.id, reason=reason)
    return _version(row)


def activate_version(session: Session, version_id: int, *, reason: str) -> ActivationRecord:
    """Make a version the one that serves its project and model; an older one is a roll-back.

    Raises:
        NotFound: when there is no such version.
    """
    version = session.get(ThresholdVersion, version_id)
    if version is None:
        raise NotFound(f"expected the id of a threshold version, got {version_id}, which does not exist")
    now = database_now(session)
    key = {"project_id": version.project_id, "model_id": version.model_id}
    previous = session.execute(
        sa.select(ActiveVersion.version_id).filter_by(**key).with_for_update()
    ).scalar_one_or_none()
    statement = insert(session, ActiveVersion).values(key | {"version_id": version_id, "activated_at": now})
    session.execute(
        statement.on_conflict_do_update(index_elements=list(key), set_={"version_id": version_id, "activated_at": now})
    )
    record = Activation(**key, version_id=version_id, previous_id=previous, reason=plain(reason, 200), at=now)
    session.add(record)
    session.flush()
    return ActivationRecord(version_id, previous, record.reason, now)


def adaptive_versions(session: Session, version_ids: Iterable[int]) -> frozenset[int]:
    """Return those of these versions whose alpha was set by an adaptive level."""
    rows = session.execute(
        sa.select(ThresholdVersion.id, ThresholdVersion.details).where(ThresholdVersion.id.in_(sorted(version_ids)))
    )
    return frozenset(number for number, details in rows if details.get("adaptive"))


def active_version(session: Session, project_id: int, *, model_id: int) -> VersionRecord | None:
    """Return the version that serves (project, model), None before the first.

    Raises:
        StoreConflict: when its content does not match its hash: the file is damaged and must not decide sets.
    """
    row = session.execute(
        sa.select(ThresholdVersion)
        .join(ActiveVersion, ActiveVersion.version_id == ThresholdVersion.id)
        .where(ActiveVersion.project_id == project_id, ActiveVersion.model_id == model_id)
    ).scalar_one_or_none()
    return None if row is None else _version(row)


def active_version_ids(session: Session) -> dict[tuple[int, int], int]:
    """Return every active version id by (project id, model id): what a replica polls to notice a change."""
    rows = session.execute(sa.select(ActiveVersion.project_id, ActiveVersion.model_id, ActiveVersion.version_id))
    return {(project, model): version for project, model, version in rows}


def load_version(session: Session, version_id: int) -> VersionRecord | None:
    """Return a version by its global id."""
    row = session.get(ThresholdVersion, version_id)
    return None if row is None else _version(row)


def list_versions(session: Session, project_id: int, *, model_id: int, limit: int = 100) -> list[VersionRecord]:
    """Return the newest versions of (project, model), newest first."""
    rows = session.execute(
        sa.select(ThresholdVersion)
        .filter_by(project_id=project_id, model_id=model_id)
        .order_by(ThresholdVersion.id.desc())
        .limit(limit)
    ).scalars()
    return [_version(row) for row in rows]


def list_activations(session: Session, project_id: int, *, model_id: int, limit: int = 100) -> list[ActivationRecord]:
    """Return the newest activations of (project, model), newest first."""
    rows = session.execute(
        sa.select(Activation)
        .filter_by(project_id=project_id, model_id=model_id)
        .order_by(Activation.id.desc())
        .limit(limit)
    ).scalars()
    return [ActivationRecord(row.version_id, row.previous_id, row.reason, row.at) for row in rows]


def load_thresholds(session: Session, version_id: int) -> list[ThresholdRow]:
    """Return the summary rows of a version, by kind and pool."""
    rows = session.execute(
        sa.select(Threshold).where(Threshold.version_id == version_id).order_by(Threshold.kind, Threshold.pool)
    ).scalars()
    return [ThresholdRow(row.kind, row.pool, row.n, row.n_infinite, row.tau) for row in rows]


def _version(row: ThresholdVersion) -> VersionRecord:
    content = bytes(row.content)
    if hashlib.sha256(content).hexdigest() != row.content_hash:
        raise StoreConflict(
            f"threshold version {row.id}: expected content with hash {row.content_hash[:12]}..., got other content; "
            "the database is damaged: restore a backup, or activate another version"
        )
    return VersionRecord(
        id=row.id,
        project_id=row.project_id,
        model_id=row.model_id,
        alpha=row.alpha,
        method=row.method,
        evidence=row.evidence,
        guarantee=row.guarantee,
        input_revision=row.input_revision,
        n=row.n,
        content=content,
        details=row.details,
        created_at=row.created_at,
    )
