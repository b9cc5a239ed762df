"""The labels of a project in parts: what a model learns from, what models are chosen by, what is left to neither.

The part to choose by is drawn by a hash of the task alone, once for all models of the project: none of them has learnt
from it, and it never calibrates any (METHODS 13.4).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from backend.calibration.score_labels import class_names
from backend.domain.records import TextSpan
from backend.labels.training_sets import ProjectLabels
from backend.tagger.errors import InvalidTraining
from backend.tagger.readers import LabelledText
from conformal.scores import hash_u

CHOICE_SHARE = 0.1
CHOICE, TRAINING, LEFT_OUT = "choice", "training", "left out"
MOST_TO_CHOOSE_BY = 300  # texts that two models are compared on


@dataclass(frozen=True)
class Parts:
    """Texts with their entities by the names of the label config, and the ids of their tasks by purpose."""

    training: list[LabelledText]
    choice: list[LabelledText]
    tasks: dict[str, list[int]]


def is_for_choice(project: str, task: str) -> bool:
    """Whether the label of a task is held out from every training, to choose between models.

    >>> sum(is_for_choice("7.1", str(task)) for task in range(10_000))
    1012
    """
    return hash_u("", project, task, "choice") < CHOICE_SHARE


def part_labels(labels: ProjectLabels) -> Parts:
    """Part the labels of a project; everything that was read has a purpose, so that none of it calibrates the model.

    Also what was left out because of what it says: which labels are left would depend on the labels otherwise.

    Raises:
        InvalidTraining: when all of them are held out.
    """
    uid = labels.project.uid
    held = {task for task in labels.texts if is_for_choice(uid, labels.names[task])}
    order = sorted(labels.texts)
    if len(held) == len(order):
        raise InvalidTraining("expected labels to learn from, got only some that are held out; label more tasks")
    return Parts(
        [labels.texts[task] for task in order if task not in held],
        [labels.texts[task] for task in order if task in held][:MOST_TO_CHOOSE_BY],
        {
            TRAINING: [task for task in order if task not in held],
            CHOICE: [task for task in order if task in held],
            LEFT_OUT: sorted(labels.lost),
        },
    )


def as_classes(texts: list[LabelledText], label_config: str | None, classes: tuple[str, ...]) -> list[LabelledText]:
    """Return texts with the classes that a model has for their labels; a label that it does not know stays."""
    names = class_names(label_config, classes)
    return [
        replace(text, spans=tuple(TextSpan(start, end, names.get(said, said)) for start, end, said in text.spans))
        for text in texts
    ]
