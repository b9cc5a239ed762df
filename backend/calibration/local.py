"""The project `local`: what the commands work on without Label Studio, shared through the database."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from sqlalchemy.orm import Session

from backend.calibration.adaptive import level_of, switch_adaptive
from backend.calibration.local_predictor import has_database, starter_of
from backend.calibration.refit import Refit, refit
from backend.calibration.score_labels import CaughtUp, score_unscored
from backend.domain.label_names import listed_names
from backend.domain.records import AnnotationRecord, Draw, ModelRecord, ProjectRecord
from backend.domain.streams import FILE_STREAM
from backend.errors import InvalidLabelConfig, NotFound
from backend.jobs.kinds import queue_publish
from backend.labelstudio.config import parse_config
from backend.prediction.calibration import Calibration, calibration_of, version_method
from backend.prediction.remarks import teach_labels
from backend.settings import Settings
from backend.store import Store, open_store
from backend.store.labels import record_annotation
from backend.store.projects import LOCAL, ensure_model, ensure_project, ensure_task, find_project, lookup_model
from backend.store.thresholds import active_version
from backend.tagger.project_classes import project_tagger
from backend.tagger.readers import LabelledText, read_labelled
from backend.tagger.tagger import Tagger
from conformal.scores import Method, hash_u

_CHUNK = 200
# Labels of a file have no time of their own; one fixed time makes loading it again a repetition, not a change.
_FILE_TIME = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class LoadedFile:
    """What was read from a labelled file."""

    name: str
    texts: int
    repairs: int
    skipped: dict[str, int]


def stored_calibration(settings: Settings, tagger: Tagger) -> Calibration | None:
    """Return the active thresholds of (local, tagger), None if there are none; never creates a database."""
    if not has_database(settings):
        return None
    with open_store(settings.database_url) as store, store.read() as session:
        project = find_project(session, LOCAL)
        model = lookup_model(session, tagger.name, tagger.hash)
        if project is None or model is None:
            return None
        version = active_version(session, project.id, model_id=model.id)
    if version is None:
        return None
    return calibration_of(version, fallback=starter_of(settings, tagger, version_method(version)))


def local_rows(store: Store, tagger: Tagger) -> tuple[ProjectRecord, ModelRecord]:
    """Return the project `local` and the tagger's row, created if need be."""

    def ensure(session: Session) -> tuple[ProjectRecord, ModelRecord]:
        project = ensure_project(session, LOCAL, title="without Label Studio")
        return project, ensure_model(session, tagger.name, tagger.hash, classes=tagger.space.classes)

    return store.run(ensure)


def refit_local(
    store: Store, tagger: Tagger, settings: Settings, *, reason: str, progress: Callable[[int], None] | None = None
) -> tuple[CaughtUp, Refit]:
    """Score what is not scored yet under the tagger, then fit the thresholds of `local` again."""
    project, _ = local_rows(store, tagger)
    return refit_project(store, project, tagger=tagger, settings=settings, reason=reason, progress=progress)


def refit_key(
    store: Store, tagger: Tagger, settings: Settings, *, key: str, reason: str, adaptive: bool | None = None
) -> tuple[CaughtUp, Refit]:
    """Refit the project of this id or uid, with the tagger over the classes of its label config.

    Args:
        adaptive: switches the project's adaptive level on or off first; None leaves it as it is.

    Raises:
        NotFound: when there is no such project.
    """
    project, view = project_view(store, tagger, settings, key=key)
    if adaptive is not None:
        store.run(lambda session: switch_adaptive(session, project.id, on=adaptive))
    return refit_project(store, project, tagger=view, settings=settings, reason=reason)


def project_view(store: Store, tagger: Tagger, settings: Settings, *, key: str) -> tuple[ProjectRecord, Tagger]:
    """Return the project of this id or uid, and the tagger over the classes of its label config.

    Raises:
        NotFound: when there is no such project.
        InvalidLabelConfig: when the model knows no label of the project.
    """
    project = local_rows(store, tagger)[0] if key == LOCAL else None
    with store.read() as session:
        project = project or find_project(session, key)
    if project is None:
        raise NotFound(f"expected the id or uid of a project in this database, got {key!r}")
    if project.label_config is None:
        return project, tagger
    target = parse_config(project.label_config).target(tagger.space.classes, control=settings.labels_control)
    if target.blank:
        raise InvalidLabelConfig(
            f"expected a model that knows a label of project {key} ({listed_names(target.unknown) or 'none'}), got one "
            f"with the classes {', '.join(tagger.space.classes)}. {teach_labels(project.key)}"
        )
    return project, project_tagger(tagger, target)


def refit_project(
    store: Store,
    project: ProjectRecord,
    *,
    tagger: Tagger,
    settings: Settings,
    reason: str,
    progress: Callable[[int], None] | None = None,
) -> tuple[CaughtUp, Refit]:
    """Score what is not scored yet under the tagger (over the project's classes), then fit the thresholds again."""
    model = store.run(lambda session: ensure_model(session, tagger.name, tagger.hash, classes=tagger.space.classes))
    # What is loaded from a file is predicted from files too, whatever its length.
    longest = None if project.uid == LOCAL else settings.max_text
    done = score_unscored(store, project, model=model, tagger=tagger, progress=progress, max_text=longest)
    with store.read() as session:
        alpha, adaptive = level_of(session, project, model_id=model.id, alpha=project.alpha or settings.alpha)
    fitted = refit(
        store,
        project,
        model=model,
        alpha=alpha,
        adaptive=adaptive,
        method=Method(settings.method),
        n_min=settings.n_min,
        policy=settings.evidence,
        skipped=settings.skipped,
        flags=settings.risk_rule,
        starter=starter_of(settings, tagger),
        reason=reason,
        within=None if project.uid == LOCAL else partial(queue_publish, project=project),
    )
    return done, fitted


def load_file(
    store: Store,
    project: ProjectRecord,
    path: Path,
    *,
    language: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> LoadedFile:
    """Record the labels of a file that the user vouches for; loading it again changes nothing.

    A task is (hash of the file, position): equal texts stay separate rows, and a file under another name is the same.
    """
    reading = read_labelled(path, language=language)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:32]
    for first in range(0, len(reading.texts), _CHUNK):
        part = reading.texts[first : first + _CHUNK]
        store.run(lambda session, part=part, first=first: _record(session, project, digest, first, part))  # type: ignore[misc]
        if progress is not None:
            progress(len(part))
    return LoadedFile(path.name, len(reading.texts), reading.repairs, dict(reading.skipped))


def _record(session: Session, project: ProjectRecord, digest: str, first: int, texts: Sequence[LabelledText]) -> None:
    for position, text in enumerate(texts, start=first):
        key = f"{digest}:{position}"
        draw = Draw(FILE_STREAM, hash_u("file", project.uid, key, "order"), 1.0, blind=True)
        task = ensure_task(session, project.id, external_id=key, text=text.text, language=text.language, draw=draw)
        number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) >> 1  # fits a signed 64-bit id
        record_annotation(session, task.id, AnnotationRecord(number, _FILE_TIME, text.spans))
