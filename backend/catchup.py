"""Score confirmed labels that have no calibration row of a model yet.

The one way labels become calibration rows: after an annotation, after a crash, for a loaded file, and for everything
stored when the model changes (METHODS 8.4).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.orm import Session

from backend.errors import StoreConflict
from backend.evidence import Evidence
from backend.scoring import ScoredText, score_labelled
from backend.store import Store
from backend.store.calibration import record_scores
from backend.store.labels import unscored_labels
from backend.store.projects import load_tasks
from backend.store.types import EntityRow, LabelRecord, ModelRecord, ProjectRecord, SequenceScores, TaskRecord
from backend.tagger.readers import LabelledText
from backend.tagger.spans import CharSpan
from backend.tagger.tagger import Tagger

FILE_STREAM = "file"
UNDRAWN = "undrawn"  # nothing was drawn for the task before it was shown, so it is no random one (METHODS 8.1)
_PAGE = 200


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
) -> CaughtUp:
    """Score every label of the project that has no row of this model for its present revision.

    Pages through them in order, a short transaction per page; a label that changes meanwhile is left for the next
    call. `progress` is told how many labels were looked at.
    """
    after, scored, inexpressible, without_text, without_label = 0, 0, 0, 0, 0
    while True:
        with store.read() as session:
            labels = unscored_labels(session, project.id, model_id=model.id, after=after, limit=_PAGE)
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
        made = list(score_labelled(tagger, [_labelled(label, task) for label, task in ready]))
        pairs = list(zip(ready, made, strict=True))
        written = store.run(lambda session, pairs=pairs: _write(session, project, model, pairs))  # type: ignore[misc]
        scored += written
        inexpressible += sum(not item.scores.expressible for item in made)
        if progress is not None:
            progress(len(labels))


def _write(
    session: Session,
    project: ProjectRecord,
    model: ModelRecord,
    pairs: list[tuple[tuple[LabelRecord, TaskRecord], ScoredText]],
) -> int:
    written = 0
    for (label, task), item in pairs:
        try:
            written += record_scores(
                session,
                project.id,
                model_id=model.id,
                task_id=task.id,
                label_revision=label.revision,
                stratum=item.cell,
                evidence=evidence_of(task),
                scores=sequence_scores(item),
                entities=entity_rows(item),
                exclusion=label.exclusion or (UNDRAWN if task.draw is None else None),
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


def _labelled(label: LabelRecord, task: TaskRecord) -> LabelledText:
    return LabelledText(task.text or "", tuple(CharSpan(*span) for span in label.spans or ()), language=task.language)
