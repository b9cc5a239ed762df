from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from backend.domain.records import TextSpan
from backend.labelstudio.annotations import control_of, is_bulk, matches_text, read_annotation, read_id
from backend.labelstudio.config import parse_config
from backend.labelstudio.payloads import InvalidPayload
from tests.support.data import require_benchmark_data
from tests.support.payload_shapes import CONFIG, TEXTS, annotation, region

TEXT = TEXTS[0]


def read(*regions: Any, **more: Any) -> Any:
    return read_annotation(annotation(1, result=list(regions), **more), control="label")


def test_what_a_person_said_is_kept_in_their_words() -> None:
    made = read(
        region(0, 9, TEXT, "Person", origin="prediction-changed"),
        region(29, 33, TEXT, "Planet", origin="manual"),
        region(29, 33, TEXT, "Planet", origin="manual"),
        was_cancelled=True,
        ground_truth=True,
        parent_prediction=12,
    )
    assert made.spans == (TextSpan(0, 9, "Person"), TextSpan(29, 33, "Planet"))
    assert made.origins == {"prediction-changed": 1, "manual": 2}
    assert (made.was_cancelled, made.ground_truth, made.parent_prediction, made.lead_time) == (True, True, 12, 3.5)
    assert made.updated_at == made.created_at == datetime(2026, 11, 2, 9, tzinfo=UTC)


def test_marks_choices_and_relations_are_no_entities() -> None:
    flag = region(0, 9, TEXT, "Needs review") | {"from_name": "flag"}
    choice = {"id": "r0", "from_name": "cand", "type": "choices", "value": {"choices": ["LOC"], "start": 0, "end": 9}}
    relation = {"type": "relation", "from_id": "a", "to_id": "b", "direction": "right"}
    assert read(flag, choice, relation).spans == ()
    assert read(flag, region(0, 9, TEXT, "Person"), relation).spans == (TextSpan(0, 9, "Person"),)
    assert read().spans == ()


def test_overlaps_and_several_labels_are_all_kept() -> None:
    several = region(0, 9, TEXT, "Person")
    several["value"]["labels"] = ["Person", "LOC"]
    assert read(several, region(0, 4, TEXT, "LOC")).spans == (
        TextSpan(0, 4, "LOC"),
        TextSpan(0, 9, "LOC"),
        TextSpan(0, 9, "Person"),
    )
    nothing = region(0, 9, TEXT, "Person")
    nothing["value"]["labels"] = []
    assert read(nothing).spans == ()


@pytest.mark.parametrize(
    "spoilt",
    [
        None,
        [],
        {},
        annotation(1, id=None),
        annotation(1, id=True),
        annotation(1, id=2**70),
        annotation(1, result=None),
        annotation(1, result={"0": {}}),
        annotation(1, result=["PER"]),
        annotation(1, updated_at=None),
        annotation(1, updated_at="yesterday"),
        annotation(1, result=[{"from_name": "label", "type": "labels"}]),
        annotation(1, result=[{"from_name": "label", "value": {"start": "0", "end": 1, "labels": ["LOC"]}}]),
        annotation(1, result=[{"from_name": "label", "value": {"start": 3, "end": 1, "labels": ["LOC"]}}]),
        annotation(1, result=[{"from_name": "label", "value": {"start": -1, "end": 1, "labels": ["LOC"]}}]),
        annotation(1, result=[{"from_name": "label", "value": {"start": 0, "end": 1.5, "labels": ["LOC"]}}]),
        annotation(1, result=[{"from_name": "label", "value": {"start": 0, "end": 1, "labels": "LOC"}}]),
        annotation(1, result=[{"from_name": "label", "value": {"start": 0, "end": 1, "labels": [None]}}]),
    ],
)
def test_what_cannot_be_read_is_refused_without_repeating_it(spoilt: Any) -> None:
    with pytest.raises(InvalidPayload) as caught:
        read_annotation(spoilt, control="label")
    assert "LOC" not in str(caught.value)


def test_odd_values_beside_the_point_do_no_harm() -> None:
    made = read(
        region(0, 4, TEXT, "x" * 300 + "\x00"),
        lead_time=float("nan"),
        unique_id=7,
        completed_by={"id": 5, "email": "a@b.example"},
        parent_prediction="12",
        created_at=17,
        was_cancelled="no",
    )
    assert (made.lead_time, made.unique_id, made.completed_by, made.parent_prediction) == (None, None, 5, None)
    assert (made.created_at, made.was_cancelled) == (None, False)
    assert [len(span.label) for span in made.spans] == [100]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"bulk_created": True, "lead_time": 3.0}, True),
        ({"lead_time": None, "updated_by": None, "parent_prediction": 9}, True),
        ({"lead_time": None, "updated_by": None, "parent_prediction": None}, True),  # its prediction was deleted
        ({"lead_time": None, "updated_by": 1, "parent_prediction": 9}, False),  # somebody edited the copy
        ({"lead_time": 2.0, "updated_by": 1, "parent_prediction": 9}, False),  # accepted as it was, by a person
        ({"lead_time": None, "updated_by": None, "ground_truth": True}, False),  # came with an import
        ({"lead_time": None, "updated_by": None, "import_id": 4}, False),
        ({"lead_time": None, "parent_prediction": None}, False),  # not known who changed it
    ],
)
def test_copies_of_predictions_are_told_from_the_work_of_people(fields: dict[str, Any], expected: bool) -> None:
    assert is_bulk(fields) is expected


def test_the_control_of_a_project() -> None:
    config = parse_config(CONFIG)
    assert control_of(config, config.target(("PER",))) == "label"
    assert control_of(config, None) == "label"
    assert control_of(config, None, named="flag") == "flag"
    assert control_of(config, None, named="other") == "label"
    assert control_of(parse_config("<View><Text name='t' value='$t'/></View>"), None) is None


def test_an_edited_text_is_noticed_where_regions_repeat_their_words() -> None:
    made = annotation(1, result=[region(0, 9, TEXT, "Person")])
    assert matches_text(made, TEXT)
    assert not matches_text(made, "Bert Ring wohnt hier.")
    crlf = "\r\n  John\r\nCarter left."
    told = region(4, 16, crlf, "Person")
    told["value"]["text"] = "John\nCarter"  # a browser's idea of line ends
    assert matches_text(annotation(1, result=[told]), crlf)
    assert matches_text(annotation(1, result=[{"value": {"start": 0, "end": 3}}, 7, {"value": None}]), "")
    assert matches_text({}, "")


def test_ids_are_whole_numbers() -> None:
    assert read_id({"id": 7}, "id") == 7
    for frame in (None, 7, [], {}, {"id": "7"}, {"id": False}, {"id": -1}, {"id": 1.0}):
        with pytest.raises(InvalidPayload, match="a whole number under 'id'"):
            read_id(frame, "id")


def test_captured_submissions_of_the_editor() -> None:
    captured = require_benchmark_data().parent / "labelstudio" / "annotations_submitted_variants.json"
    variants = json.loads(captured.read_text(encoding="utf-8"))
    for name, body in variants.items():
        body |= {"id": 1, "updated_at": "2026-11-16T00:22:09.061Z", "updated_by": 1}
        made = read_annotation(body, control="label")
        assert TextSpan(0, 5, "PER") in made.spans, name
        assert "Needs review" not in {span.label for span in made.spans}, name
        assert not made.bulk, name
        assert set(made.origins) == {"prediction"}, name
