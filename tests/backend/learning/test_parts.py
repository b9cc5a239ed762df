"""Which labels a model learns from, which ones choose between models, and that every label that was read has a part."""

from __future__ import annotations

import pytest

from backend.domain.records import ProjectRecord, TextSpan
from backend.labels.training_sets import ProjectLabels
from backend.learning.parts import CHOICE, LEFT_OUT, TRAINING, as_classes, is_for_choice, part_labels
from backend.tagger.errors import InvalidTraining
from backend.tagger.readers import LabelledText

PROJECT = ProjectRecord(id=1, uid="7.1", key="7", title="", label_config=None, alpha=None)


def labels(names: list[str]) -> ProjectLabels:
    texts = {number: LabelledText(f"text {name}", ()) for number, name in enumerate(names)}
    return ProjectLabels(PROJECT, texts, {}, dict(enumerate(names)), (900, 800))


def test_parts_do_not_depend_on_what_else_is_there() -> None:
    names = [str(number) for number in range(200)]
    parts = part_labels(labels(names))
    assert sorted(parts.tasks[TRAINING] + parts.tasks[CHOICE]) == list(range(200))
    assert parts.tasks[LEFT_OUT] == [800, 900]
    assert len(parts.training) == len(parts.tasks[TRAINING])
    assert 8 <= len(parts.tasks[CHOICE]) <= 35
    later = part_labels(labels([*names, *(str(number) for number in range(200, 400))]))
    assert later.tasks[CHOICE][: len(parts.tasks[CHOICE])] == parts.tasks[CHOICE]
    assert {text.text for text in parts.choice} == {f"text {n}" for n in names if is_for_choice("7.1", n)}


def test_other_projects_hold_out_other_tasks() -> None:
    names = [str(number) for number in range(500)]
    assert [is_for_choice("7.1", n) for n in names] != [is_for_choice("8.1", n) for n in names]


def test_only_held_out_labels_teach_nothing() -> None:
    held = [str(n) for n in range(200) if is_for_choice("7.1", str(n))]
    with pytest.raises(InvalidTraining, match="got only some that are held out"):
        part_labels(labels(held))


def test_labels_become_the_classes_that_a_model_has_for_them() -> None:
    config = (
        '<View><Labels name="l" toName="t"><Label value="Person"/><Label value="Drug"/></Labels>'
        '<Text name="t" value="$text"/></View>'
    )
    said = LabelledText("Ann took x", (TextSpan(0, 3, "Person"), TextSpan(9, 10, "Drug")))
    (known,) = as_classes([said], config, ("PER", "LOC"))
    assert [span.label for span in known.spans] == ["PER", "Drug"]
