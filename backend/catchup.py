"""Score confirmed labels that have no calibration row of a model yet, and judge which rows may calibrate.

The one way labels become calibration rows: after an annotation, after a crash, for a loaded file, and for everything
stored when the model changes (METHODS 8.4). Whether a row may calibrate is a function of the draw, of the order in
which tasks were given out, and of what trained the model; when news about these come late, rows are judged again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from sqlalchemy.orm import Session

from backend.errors import InvalidLabelConfig, StoreConflict
from backend.evidence import Evidence
from backend.labelstudio.config import match_labels, parse_config
from backend.scoring import ScoredText, score_labelled
from backend.store import Store
from backend.store.calibration import record_scores
from backend.store.labels import labels_of, unscored_labels
from backend.store.projects import LOCAL, load_tasks, lock_tasks
from backend.store.rows import live_rows, row_entities, scored_models
from backend.store.sampling import load_history, lock_project
from backend.store.served import prelabelled
from backend.store.training import TRAINED, training_tasks
from backend.store.types import (
    EntityRow,
    JobRecord,
    LabelRecord,
    ModelRecord,
    ProjectRecord,
    SequenceScores,
    TaskRecord,
)
from backend.streams import FILE_STREAM, OrderHistory, exclusion_of
from backend.tagger.readers import LabelledText
from backend.tagger.spans import CharSpan
from backend.tagger.tagger import Tagger

if TYPE_CHECKING:  # it brings the service in
    from backend.work import WorkContext

_PAGE = 200
_NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True)
class CaughtUp:
    """How many labels became rows, how many of those the model cannot express, and how many could not be scored."""

    scored: int = 0
    inexpressible: int = 0
    without_text: int = 0
    without_label: int = 0


def score_unscored(
    store: Store,
    project: ProjectRecord,
    *,
    model: ModelRecord,
    tagger: Tagger,
    progress: Callable[[int], None] | None = None,
    task_ids: Iterable[int] | None = None,
) -> CaughtUp:
    """Score every label of the project that has no row of this model for its present revision.

    Pages through them in order, a short transaction per page; a label that changes meanwhile is left for the next
    call. `progress` is told how many labels were looked at.

    Args:
        task_ids: look at these tasks only, for labels that just changed; the cost does not grow with the project.
    """
    after, scored, inexpressible, without_text, without_label = 0, 0, 0, 0, 0
    names = class_names(project.label_config, tagger.space.classes)
    wanted = None if task_ids is None else sorted(set(task_ids))
    # Labels of a project come one by one, in any order, and their rows must not depend on which came together.
    chunk = _PAGE if project.uid == LOCAL else 1
    while True:
        with store.read() as session:
            labels = unscored_labels(session, project.id, model_id=model.id, after=after, limit=_PAGE, task_ids=wanted)
            tasks = load_tasks(session, [label.task_id for label in labels])
        if not labels:
            return CaughtUp(scored, inexpressible, without_text, without_label)
        after = labels[-1].id
        ready = [
            (label, tasks[label.task_id])
            for label in labels
            if label.spans is not None and tasks[label.task_id].text is not None
        ]
        without_label += sum(label.spans is None for label in labels)
        without_text += len(labels) - len(ready) - sum(label.spans is None for label in labels)
        made = list(score_labelled(tagger, [_labelled(label, task, names) for label, task in ready], chunk=chunk))
        pairs = list(zip(ready, made, strict=True))
        if pairs:
            scored += store.run(partial(_write, project=project, model=model, tagger=tagger, pairs=pairs))
        inexpressible += sum(not item.scores.expressible for item in made)
        if progress is not None:
            progress(len(labels))


def reconsider(store: Store, project: ProjectRecord, *, progress: Callable[[int], None] | None = None) -> int:
    """Judge every row of a project again, under all models; returns how many changed sides.

    A row that does is retired and added again with its scores, so that every version of thresholds can still be
    rebuilt. Needs no model.
    """
    with store.read() as session:
        models = scored_models(session, project.id)
    changed = 0
    for model_id in models:
        after = 0
        while True:
            page = store.run(partial(_judge_page, project=project, model_id=model_id, after=after))
            if page is None:
                break
            after = page.last
            changed += page.changed
            if progress is not None:
                progress(page.looked)
    return changed


def run_reconsider(context: WorkContext, job: JobRecord) -> dict[str, int]:
    """Do the job of kind `reconsider`."""
    project = context.project_of(job)
    looked = 0

    def tell(more: int) -> None:
        nonlocal looked
        looked += more
        context.heartbeat(done=looked)

    return {"changed": reconsider(context.store, project, progress=tell), "rows": looked}


@lru_cache(maxsize=64)
def class_names(label_config: str | None, classes: tuple[str, ...]) -> Mapping[str, str]:
    """Return the class that each label of a label config stands for; labels that stand for none are missing.

    >>> class_names('<View><Labels name="l" toName="t"><Label value="Person"/><Label value="Dog"/></Labels>'
    ...             '<Text name="t" value="$text"/></View>', ("PER", "LOC"))
    {'Person': 'PER'}
    """
    try:
        controls = () if label_config is None else parse_config(label_config).controls
    except InvalidLabelConfig:
        controls = ()
    names: dict[str, str] = {}
    for control in controls:
        for name, label in match_labels(control.options, classes).items():
            names.setdefault(label, name)
    return names


@dataclass(frozen=True)
class _Page:
    last: int
    looked: int
    changed: int


def _judge_page(session: Session, *, project: ProjectRecord, model_id: int, after: int) -> _Page | None:
    lock_project(session, project.id, shared=True)
    rows = live_rows(session, project.id, model_id=model_id, after=after, limit=_PAGE)
    if not rows:
        return None
    history = load_history(session, project.id)
    # From here on no label of these changes, so that what is read below is what is judged.
    lock_tasks(session, [row.task_id for row in rows])
    labels = labels_of(session, [row.task_id for row in rows])
    tasks = load_tasks(session, [row.task_id for row in rows])
    changed = 0
    for row in rows:
        label = labels.get(row.task_id)
        if label is None or label.revision != row.label_revision:
            continue  # what was scored no longer counts; the label will be scored again
        wanted = judge(label, tasks[row.task_id], history, trained=row.exclusion == TRAINED)
        if (wanted or "") == row.exclusion:
            continue
        changed += record_scores(
            session,
            project.id,
            model_id=model_id,
            task_id=row.task_id,
            label_revision=row.label_revision,
            stratum=row.stratum,
            evidence=row.evidence,
            scores=row.scores,
            entities=row_entities(session, row.id),
            part=row.part,
            exclusion=wanted,
            weight=row.weight,
        )
    return _Page(rows[-1].id, len(rows), changed)


def _made_at(label: LabelRecord) -> datetime:
    made = label.annotation
    return _NEVER if made is None else made.created_at or made.updated_at


def judge(label: LabelRecord, task: TaskRecord, history: OrderHistory, *, trained: bool) -> str | None:
    """Return why the label of a task may not calibrate a model, None when it may (METHODS 8.1, 8.3, 8.4)."""
    if label.exclusion is not None:
        return label.exclusion
    if trained:
        return TRAINED
    return exclusion_of(task.draw, history, None if label.annotation is None else _made_at(label))


def _write(
    session: Session,
    *,
    project: ProjectRecord,
    model: ModelRecord,
    tagger: Tagger,
    pairs: list[tuple[tuple[LabelRecord, TaskRecord], ScoredText]],
) -> int:
    # Read under the lock that changes of the history take: a row is never judged by a history that is out of date.
    lock_project(session, project.id, shared=True)
    history = load_history(session, project.id)
    numbers = [task.id for (_, task), _ in pairs]
    lock_tasks(session, numbers)
    trained = training_tasks(session, tagger.base_hash, numbers, ancestors=tagger.ancestors)
    drawn = load_tasks(session, numbers)
    led = prelabelled(session, [task.id for task in drawn.values() if evidence_of(task) is Evidence.BLIND])
    written = 0
    for (label, task), item in pairs:
        task = drawn[task.id]  # noqa: PLW2901 - its draw may have come since it was read
        try:
            written += record_scores(
                session,
                project.id,
                model_id=model.id,
                task_id=task.id,
                label_revision=label.revision,
                stratum=item.cell,
                evidence=Evidence.ASSISTED if led.get(task.id, _NEVER) < _made_at(label) else evidence_of(task),
                scores=sequence_scores(item),
                entities=entity_rows(item),
                exclusion=judge(label, task, history, trained=task.id in trained),
                weight=1.0 if task.draw is None else 1.0 / task.draw.selection_probability,
            )
        except StoreConflict:
            continue  # the label changed since it was read; the next call scores it as it is then
    return written


def evidence_of(task: TaskRecord) -> Evidence:
    """Return what a label of this task is worth: decided before anyone saw it (METHODS 8.1, 8.2)."""
    if task.draw is None:
        return Evidence.ASSISTED
    if task.draw.stream == FILE_STREAM:
        return Evidence.FILE
    return Evidence.BLIND if task.draw.blind else Evidence.ASSISTED


def sequence_scores(item: ScoredText) -> SequenceScores:
    """Return the scores of a whole labeling as the store keeps them."""
    scores = item.scores
    return SequenceScores(
        nll=-scores.log_probability,
        rank=float(scores.rank) if scores.rank else float("inf"),
        cumulative=scores.cumulative,
        entities=len(item.alignment.spans) + len(item.alignment.inexpressible),
    )


def entity_rows(item: ScoredText) -> list[EntityRow]:
    """Return the scores of entities and junk spans as the store keeps them, with their characters."""
    rows = item.scores.entities
    unknown = float("inf")
    return [
        EntityRow(start, end, label, probability, cumulative, float(place) or unknown, float(rank) or unknown)
        for (start, end), label, probability, cumulative, place, rank in zip(
            item.places,
            rows.labels,
            rows.scored.probability.tolist(),
            rows.scored.cumulative.tolist(),
            rows.scored.place.tolist(),
            rows.rank.tolist(),
            strict=True,
        )
    ]


def _labelled(label: LabelRecord, task: TaskRecord, names: Mapping[str, str]) -> LabelledText:
    # A label that stands for no class of the model stays what the person said, and makes the labeling inexpressible.
    spans = tuple(CharSpan(start, end, names.get(said, said)) for start, end, said in label.spans or ())
    return LabelledText(task.text or "", spans, language=task.language)
