"""Training from the labels people confirmed: which may be used, what was used, and the hand-over (METHODS 8.4).

Labels of audit and blind tasks are what the guarantee rests on and are never trained on. Which tasks those are was
drawn before anyone saw them, so what is left for calibration stays a random sample, whatever a model has learnt. A
task that was merely shown blank, because no model knew its labels, was not drawn: it trains (METHODS 13.1).

A model's classes are the labels of the project's config, by their own names. Labels that the config has lost stay
stored, and are left out until it has them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from sqlalchemy.orm import Session

from backend.domain.label_names import usable_names
from backend.domain.records import LabelRecord, ProjectRecord, TaskRecord, TextSpan
from backend.domain.streams import AUDIT
from backend.errors import InvalidLabelConfig, NotFound
from backend.jobs.kinds import queue_rescore
from backend.labelstudio.config import Option, match_labels, parse_config
from backend.store import Store
from backend.store.labels import list_labels
from backend.store.projects import find_project, load_tasks
from backend.store.training import record_training_tasks
from backend.tagger.errors import InvalidTraining
from backend.tagger.identity import ModelHeader, viewed
from backend.tagger.readers import LabelledText
from backend.tagger.training_data import Material

_PAGE = 500
_LOST = "has a label that the label config no longer has"


@dataclass(frozen=True)
class ProjectLabels:
    """The usable labels of a project, by task, and how many were left out, by reason.

    `names` are the tasks' ids in Label Studio; `lost` are tasks whose label has a name that the label config has lost.
    """

    project: ProjectRecord
    texts: dict[int, LabelledText]
    left_out: dict[str, int]
    names: dict[int, str]
    lost: tuple[int, ...]

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
    external: dict[int, str] = {}
    lost: list[int] = []
    with store.read() as session:
        project = find_project(session, key)
        if project is None:
            raise NotFound(f"expected the id of a project that the database knows, got {key!r}")
        names = ClassNames(project)
        after = 0
        while page := list_labels(session, project.id, after=after, limit=_PAGE):
            after = page[-1].id
            tasks = load_tasks(session, [label.task_id for label in page])
            for label in page:
                reason = unusable(label, tasks[label.task_id])
                spans = None if reason is not None else _named(label.spans or (), names)
                if spans is None:
                    if reason is None:
                        lost.append(label.task_id)
                    reason = reason or _LOST
                    left_out[reason] = left_out.get(reason, 0) + 1
                else:
                    external[label.task_id] = tasks[label.task_id].external_id
                    texts[label.task_id] = _text(label, spans, tasks[label.task_id], project)
    if not texts:
        raise InvalidTraining(f"expected confirmed labels to train on in project {key}, got none ({left_out})")
    return ProjectLabels(project, texts, left_out, external, tuple(lost))


def unusable(label: LabelRecord, task: TaskRecord) -> str | None:
    """Say why a label may not be trained on, None when it may."""
    if label.spans is None or label.exclusion is not None:
        return label.exclusion or "unconfirmed"
    if task.deleted:
        return "deleted"
    if task.draw is not None and (task.draw.blind or task.draw.stream == AUDIT):
        return "audit or blind: kept for calibration"
    return "without its text" if task.text is None else None


class ClassNames:
    """The class that each label of a project is trained as: its name in the label config."""

    def __init__(self, project: ProjectRecord) -> None:
        self._options: tuple[Option, ...] | None = None
        if project.label_config is not None:
            with suppress(InvalidLabelConfig):
                controls = parse_config(project.label_config).controls
                self._options = tuple(option for control in controls for option in control.options)

    def of(self, label: str) -> str | None:
        """Return the class of a label, None where the config has it no longer.

        A label that was renamed is known by the `predicted_values` of the new one.
        """
        options = self._options
        gone = options is not None and all(option.value != label for option in options)
        name = match_labels(options or (), [label]).get(label, "") if gone else label
        return next(iter(usable_names([name])), None)


def _named(spans: Sequence[TextSpan], names: ClassNames) -> tuple[TextSpan, ...] | None:
    """Return spans with their classes, None when one of them has none: without it the text would teach a mistake."""
    named = [(start, end, names.of(label)) for start, end, label in spans]
    known = tuple(TextSpan(start, end, name) for start, end, name in named if name is not None)
    return known if len(known) == len(named) else None


def _text(label: LabelRecord, spans: tuple[TextSpan, ...], task: TaskRecord, project: ProjectRecord) -> LabelledText:
    source = f"project {project.key}"
    return LabelledText(task.text or "", spans, task.language, None, source, label.task_id)


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
