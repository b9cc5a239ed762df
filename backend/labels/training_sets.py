"""Training from the labels people confirmed: which may be used, what was used, and the hand-over (METHODS 8.4).

Labels of audit and blind tasks are what the guarantee rests on and are never trained on. Which tasks those are was
drawn before anyone saw them, so what is left for calibration stays a random sample, whatever a model has learnt.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sqlalchemy.orm import Session

from backend.domain.records import LabelRecord, ProjectRecord, TaskRecord
from backend.domain.streams import AUDIT
from backend.errors import InvalidLabelConfig, NotFound
from backend.jobs.kinds import queue_rescore
from backend.labelstudio.config import parse_config
from backend.store import Store
from backend.store.labels import list_labels
from backend.store.projects import find_project, load_tasks
from backend.store.training import record_training_tasks
from backend.tagger.errors import InvalidTraining
from backend.tagger.identity import ModelHeader, viewed
from backend.tagger.readers import LabelledText
from backend.tagger.training_data import Material

_PAGE = 500


@dataclass(frozen=True)
class ProjectLabels:
    """The usable labels of a project, by task, and how many were left out, by reason."""

    project: ProjectRecord
    texts: dict[int, LabelledText]
    left_out: dict[str, int]

    def summary(self) -> str:
        """One line for people."""
        parts = [f"{len(self.texts):,} confirmed labels"]
        parts += [f"{count:,} left out ({reason})" for reason, count in sorted(self.left_out.items())]
        return ", ".join(parts)


def read_project(store: Store, key: str) -> ProjectLabels:
    """Read the labels of a project that a model may learn from.

    Raises:
        NotFound: when there is no such project.
        InvalidTraining: when no label is left.
    """
    texts: dict[int, LabelledText] = {}
    left_out: dict[str, int] = {}
    with store.read() as session:
        project = find_project(session, key)
        if project is None:
            raise NotFound(f"expected the id of a project that the database knows, got {key!r}")
        after = 0
        while page := list_labels(session, project.id, after=after, limit=_PAGE):
            after = page[-1].id
            tasks = load_tasks(session, [label.task_id for label in page])
            for label in page:
                reason = unusable(label, tasks[label.task_id])
                if reason is None:
                    texts[label.task_id] = _text(label, tasks[label.task_id], project)
                else:
                    left_out[reason] = left_out.get(reason, 0) + 1
    if not texts:
        raise InvalidTraining(f"expected confirmed labels to train on in project {key}, got none ({left_out})")
    return ProjectLabels(project, texts, left_out)


def unusable(label: LabelRecord, task: TaskRecord) -> str | None:
    """Say why a label may not be trained on, None when it may."""
    if label.spans is None or label.exclusion is not None:
        return label.exclusion or "unconfirmed"
    if task.deleted:
        return "deleted"
    if task.draw is not None and (task.draw.blind or task.draw.stream == AUDIT):
        return "audit or blind: kept for calibration"
    return "without its text" if task.text is None else None


def _text(label: LabelRecord, task: TaskRecord, project: ProjectRecord) -> LabelledText:
    source = f"project {project.key}"
    return LabelledText(task.text or "", label.spans or (), task.language, None, source, label.task_id)


def add_labels(material: Material, labels: ProjectLabels, *, dev_share: float, seed: int) -> dict[str, list[int]]:
    """Put the labels of a project into what a model is trained on; return the task ids by purpose.

    Without texts to stop by from elsewhere, a random share is held out for that.
    """
    ids = sorted(labels.texts)
    texts = [labels.texts[task] for task in ids]
    share = 0.0 if material.held else dev_share
    held = material.hold_out(texts, share=share, rng=np.random.default_rng([seed, 11]))
    if share:
        material.dev_share = share
    material.files.append({"name": f"project {labels.project.uid}", "labels": str(len(ids))})
    return {
        "training": [task for task, kept in zip(ids, held, strict=True) if not kept],
        "stopping": [task for task, kept in zip(ids, held, strict=True) if kept],
    }


def hand_over(store: Store, project: ProjectRecord, *, model: ModelHeader, used: dict[str, list[int]]) -> int:
    """Record what a model was trained on and ask for the project's labels to be scored under it; return how many.

    Both in one transaction: no process can score a label under the model without knowing that it was trained on.
    """

    def write(session: Session) -> int:
        count = sum(
            record_training_tasks(session, model.hash, tasks, purpose=purpose) for purpose, tasks in used.items()
        )
        seen = _viewed(model, project)
        queue_rescore(session, project, model=seen.hash)
        return count

    return store.run(write)


def _viewed(model: ModelHeader, project: ProjectRecord) -> ModelHeader:
    if project.label_config is None:
        return model
    try:
        return viewed(model, parse_config(project.label_config).target(model.classes))
    except InvalidLabelConfig:
        return model
