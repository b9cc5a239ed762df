from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from backend.labelstudio.versions import base_version
from backend.publish.stale import doubled, has_superseded, has_version, made_for_other_text, superseded

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
OLD, NEW = "m@01234567+cal.1", "m@01234567+cal.2"


def task(*predictions: tuple[str, int]) -> dict[str, Any]:
    made = [
        {"id": number, "model_version": name, "created_at": (NOON + timedelta(minutes=minutes)).isoformat()}
        for number, (name, minutes) in enumerate(predictions, start=1)
    ]
    return {"id": 7, "predictions": made}


@pytest.mark.parametrize("other", ["undefined", "", None, 3, "gpt-9", "m@0123456+cal.1", f"{OLD} #x"])
def test_predictions_of_other_models_are_not_ours(other: object) -> None:
    assert base_version(other) is None


def test_old_ones_go_when_the_new_one_has_been_there_long_enough() -> None:
    both = task((f"{OLD} #2", -90), (OLD, -90), ("theirs", -90), (f"{NEW} #2", -70), (NEW, -70))
    assert superseded(both, NEW, before=NOON - timedelta(minutes=60)) == [1, 2]
    assert superseded(both, NEW, before=NOON - timedelta(minutes=80)) == []
    assert superseded(task((OLD, -90)), NEW, before=NOON) == []  # nothing to take its place yet


def test_a_task_has_a_version_when_it_has_its_best_labeling() -> None:
    assert has_version(task((f"{NEW} #2", 0), (NEW, 0)), NEW)
    assert not has_version(task((f"{NEW} #2", 0)), NEW)
    assert has_superseded(task((OLD, 0), (NEW, 0)), NEW)
    assert not has_superseded(task(("theirs", 0), (NEW, 0)), NEW)


def test_of_a_version_that_is_there_twice_the_later_ones_go() -> None:
    twice = task((f"{NEW} #2", 0), (NEW, 0), (OLD, 0), (OLD, 0), (f"{NEW} #2", 1), (NEW, 1))
    assert doubled(twice, NEW) == [5, 6]


def test_predictions_for_a_text_that_was_edited() -> None:
    found = task((OLD, 0), ("theirs", 0), (NEW, 0))
    assert made_for_other_text(found, [7]) == [1, 3]
    assert made_for_other_text(found, [8]) == []
