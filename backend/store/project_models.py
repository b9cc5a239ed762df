"""The models of projects: registered, promoted, retired; and the files they are loaded from (METHODS 13.8).

A model's file is kept by the model's hash, so that every replica has it. Files come before states: what serves has had
its file, and a file goes only when nothing that is served or was shown names its model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.domain.project_model import STORED, ProjectModel, State
from backend.domain.text import plain
from backend.errors import NotFound
from backend.store.engine import database_now
from backend.store.tables import Model, ModelChunk, ModelFile, Project, ServedSet
from backend.store.tables import ProjectModel as Row
from backend.store.upsert import get_or_create, insert

CHUNK = 1 << 20  # bytes of a file in one row
KEPT = 3  # retired models of a project whose files stay in any case, so that one can go back to them
FRESH = timedelta(days=1)  # a file this young stays: whoever stored it may not have registered its model yet


@dataclass(frozen=True)
class StoredFile:
    """What is known of a model's file; `path` is where it lies if it is not in the database."""

    model_hash: str
    size: int
    sha256: str
    path: str | None


def register_model(
    session: Session,
    project_id: int,
    *,
    model_hash: str,
    name: str,
    classes: Sequence[str],
    base: str,
    labels: int,
    asked_by: str,
    recipe: Mapping[str, Any] | None = None,
    figures: Mapping[str, Any] | None = None,
    labels_until: datetime | None = None,
    why: str = "",
) -> ProjectModel:
    """Return the project's model of this hash, registered as a candidate if it is not known yet.

    Training that is run again comes to the same model: its state is left as it is. Call `store_file` before, or in the
    same transaction.

    Args:
        model_hash: over all its classes.
        base: `bundled`, `nothing`, or the hash of the model that training began with.
        labels: how many labels it learnt from.
        labels_until: the moment up to which labels were read.
        figures: how good it was on labels held out for choosing.
    """
    fresh = {
        "name": plain(name, 300),
        "classes": list(classes),
        "base": base,
        "labels": labels,
        "labels_until": labels_until,
        "recipe": dict(recipe or {}),
        "figures": dict(figures or {}),
        "state": State.CANDIDATE.value,
        "asked_by": plain(asked_by, 200),
        "why": plain(why, 300),
        "created_at": database_now(session),
    }
    return _record(get_or_create(session, Row, {"project_id": project_id, "model_hash": model_hash}, fresh))


def promote_model(session: Session, project_id: int, model_hash: str, *, why: str) -> ProjectModel:
    """Let a model be the project's own, and retire the one that was; nothing changes if it is already.

    Raises:
        NotFound: when the project has no such model, or its file is gone.
    """
    _lock(session, project_id)
    chosen = _row(session, project_id, model_hash)
    if chosen.state == State.SERVING.value:
        return _record(chosen)
    if session.get(ModelFile, model_hash, populate_existing=True) is None:
        raise NotFound(
            f"expected the file of model {model_hash[:8]}, got none: nothing needed it any more; train again"
        )
    now = database_now(session)
    _retire_serving(session, project_id, why=f"followed by {model_hash[:8]}", now=now)
    chosen.state, chosen.promoted_at, chosen.retired_at = State.SERVING.value, now, None
    chosen.why = plain(why, 300)
    session.flush()
    return _record(chosen)


def retire_model(session: Session, project_id: int, model_hash: str, *, why: str) -> ProjectModel:
    """Take a model out of service, or a candidate out of the choice; nothing changes if it is already.

    A project whose model is retired without another being promoted is served by the settings' model.

    Raises:
        NotFound: when the project has no such model.
    """
    _lock(session, project_id)
    row = _row(session, project_id, model_hash)
    if row.state != State.RETIRED.value:
        row.state, row.retired_at, row.why = State.RETIRED.value, database_now(session), plain(why, 300)
        session.flush()
    return _record(row)


def serving_model(session: Session, project_id: int) -> ProjectModel | None:
    """Return the project's own model, None when the settings' model is what it has."""
    query = sa.select(Row).where(Row.project_id == project_id, Row.state == State.SERVING.value)
    row = session.execute(query).scalar_one_or_none()
    return None if row is None else _record(row)


def find_model(session: Session, project_id: int, model_hash: str) -> ProjectModel | None:
    """Return a model of a project, None when it has none of this hash."""
    row = session.execute(sa.select(Row).filter_by(project_id=project_id, model_hash=model_hash)).scalar_one_or_none()
    return None if row is None else _record(row)


def match_model(session: Session, project_id: int, prefix: str) -> ProjectModel:
    """Return the one model of a project whose hash begins like this.

    Raises:
        NotFound: when there is none, or several.
    """
    found: Sequence[Row] = ()
    if prefix and set(prefix) <= set("0123456789abcdef"):
        query = sa.select(Row).where(Row.project_id == project_id, Row.model_hash.startswith(prefix))
        found = session.execute(query.limit(2)).scalars().all()
    if len(found) != 1:
        got = "what begins several" if found else "another"
        raise NotFound(f"expected the hash of a model of the project, or how it begins, got {got}: see its models")
    return _record(found[0])


def list_models(session: Session, project_id: int, *, limit: int | None = None) -> list[ProjectModel]:
    """Return the models of a project, the newest first."""
    query = sa.select(Row).where(Row.project_id == project_id).order_by(Row.id.desc()).limit(limit)
    return [_record(row) for row in session.execute(query).scalars()]


def store_file(session: Session, model_hash: str, content: bytes) -> None:
    """Keep the file of a model in the database; one that is there is replaced, whole."""
    _replace(session, model_hash, size=len(content), sha256=hashlib.sha256(content).hexdigest(), path=None)
    for number, start in enumerate(range(0, len(content), CHUNK)):
        piece = {"model_hash": model_hash, "number": number, "content": content[start : start + CHUNK]}
        session.execute(sa.insert(ModelChunk), [piece])


def store_path(session: Session, model_hash: str, path: str, *, size: int, sha256: str) -> None:
    """Keep where the file of a model lies that is too large for the database; every replica must see that path."""
    _replace(session, model_hash, size=size, sha256=sha256, path=path)


def find_file(session: Session, model_hash: str) -> StoredFile | None:
    """Return what is known of a model's file, without reading it; None when there is none."""
    row = session.get(ModelFile, model_hash, populate_existing=True)
    return None if row is None else StoredFile(row.model_hash, row.size, row.sha256, row.path)


def kept_files(session: Session, hashes: Sequence[str]) -> set[str]:
    """Return those of the models whose files there are."""
    return set(session.execute(sa.select(ModelFile.model_hash).where(ModelFile.model_hash.in_(hashes))).scalars())


def read_file(session: Session, model_hash: str) -> bytes | None:
    """Return the file of a model that the database holds, None when it does not."""
    row = session.get(ModelFile, model_hash, populate_existing=True)
    if row is None or row.path is not None:
        return None
    query = sa.select(ModelChunk.content).where(ModelChunk.model_hash == model_hash).order_by(ModelChunk.number)
    return b"".join(bytes(piece) for piece in session.execute(query).scalars())


def removable_files(session: Session) -> list[StoredFile]:
    """Return the files that nothing needs: of models that no project has or might go back to, and no served set names.

    A project needs its candidates, the model that serves it, and the `KEPT` that were retired last. Files stored within
    `FRESH` stay in any case.
    """
    rows = session.execute(sa.select(Row.project_id, Row.model_hash, Row.state).order_by(Row.retired_at.desc(), Row.id))
    needed: set[str] = set()
    spared: dict[int, int] = {}
    for project, digest, state in rows:
        if state == State.RETIRED.value:
            spared[project] = spared.get(project, 0) + 1
        if state != State.RETIRED.value or spared[project] <= KEPT:
            needed.add(digest)
    old = sa.select(ModelFile).where(ModelFile.stored_at < database_now(session) - FRESH)
    files = {file.model_hash: file for file in session.execute(old).scalars()}
    left = set(files) - needed
    if left:
        left -= _shown(session, left)
    return [StoredFile(digest, files[digest].size, files[digest].sha256, files[digest].path) for digest in sorted(left)]


def prune_models(session: Session) -> list[StoredFile]:
    """Remove the files that nothing needs (`removable_files`); returns them. What was registered stays registered."""
    gone = removable_files(session)
    if gone:
        session.execute(sa.delete(ModelFile).where(ModelFile.model_hash.in_([file.model_hash for file in gone])))
    return gone


def _shown(session: Session, hashes: set[str]) -> set[str]:
    """Return those of the models that made a set which is still kept."""
    named: dict[str, list[int]] = {}
    for model_id, details in session.execute(sa.select(Model.id, Model.details)):
        source = str(details.get("source", ""))
        if source.removeprefix(STORED) in hashes:
            named.setdefault(source.removeprefix(STORED), []).append(model_id)
    shown = set()
    for digest, ids in named.items():
        if session.execute(sa.select(ServedSet.id).where(ServedSet.model_id.in_(ids)).limit(1)).first() is not None:
            shown.add(digest)
    return shown


def _replace(session: Session, model_hash: str, *, size: int, sha256: str, path: str | None) -> None:
    row = {"model_hash": model_hash, "size": size, "sha256": sha256, "path": path, "stored_at": database_now(session)}
    statement = insert(session, ModelFile).values(row)
    changed = {name: statement.excluded[name] for name in ("size", "sha256", "path", "stored_at")}
    # The row first: whoever stores the same model at the same time waits here, and then sees the pieces to remove.
    session.execute(statement.on_conflict_do_update(index_elements=["model_hash"], set_=changed))
    session.execute(sa.delete(ModelChunk).where(ModelChunk.model_hash == model_hash))


def _lock(session: Session, project_id: int) -> None:
    """Hold the project, so that two processes that promote do it one after the other."""
    query = sa.select(Project.id).where(Project.id == project_id).with_for_update(key_share=True)
    if session.execute(query).first() is None:
        raise NotFound(f"expected the id of a project, got {project_id}, which does not exist")


def _row(session: Session, project_id: int, model_hash: str) -> Row:
    query = sa.select(Row).filter_by(project_id=project_id, model_hash=model_hash)
    row = session.execute(query.execution_options(populate_existing=True)).scalar_one_or_none()
    if row is None:
        raise NotFound(f"expected a model of the project, got {model_hash[:8]}, which it does not have")
    return row


def _retire_serving(session: Session, project_id: int, *, why: str, now: datetime) -> None:
    session.execute(
        sa.update(Row)
        .where(Row.project_id == project_id, Row.state == State.SERVING.value)
        .values(state=State.RETIRED.value, retired_at=now, why=why)
    )


def _record(row: Row) -> ProjectModel:
    return ProjectModel(
        id=row.id,
        project_id=row.project_id,
        model_hash=row.model_hash,
        name=row.name,
        classes=tuple(row.classes),
        base=row.base,
        labels=row.labels,
        labels_until=row.labels_until,
        state=State(row.state),
        asked_by=row.asked_by,
        why=row.why,
        created_at=row.created_at,
        promoted_at=row.promoted_at,
        retired_at=row.retired_at,
        recipe=dict(row.recipe),
        figures=dict(row.figures),
    )
