"""Predictions as Label Studio wants them; its own SDK is the witness that every one of them is valid."""

from __future__ import annotations

from typing import Any

import pytest
from label_studio_sdk.label_interface import LabelInterface

from backend.documents.document import ANY_TEXT, PlainDocument
from backend.domain.priority import priority_of
from backend.domain.ranked import Labeling
from backend.domain.records import TextSpan
from backend.domain.target import Target
from backend.labelstudio.config import parse_config
from backend.labelstudio.interactive import read_given
from backend.labelstudio.payloads import TaskIn
from backend.labelstudio.render import render, render_empty, render_suggestion
from backend.prediction.answer import Answer
from backend.prediction.prediction import DoubtfulSpan
from conformal.span_sets import SpanLabel

TEXT = "👩‍🚀 Alice\r\nmet Jordan."
ALICE, JORDAN = TEXT.index("Alice"), TEXT.index("Jordan")
XML = (
    '<View><Labels name="entity" toName="body"><Label value="Person" predicted_values="PER"/>'
    '<Label value="Place" alias="LOC"/></Labels>{flag}<Text name="body" value="$body"/></View>'
)
FLAG = '<Labels name="doubt" toName="body"><Label value="Needs review"/></Labels>'


def target(flag: str = FLAG) -> Target:
    return parse_config(XML.format(flag=flag)).target(["LOC", "PER"])


def answer(**changes: Any) -> Answer:
    alice = TextSpan(ALICE, ALICE + 5, "PER")
    labelings = (
        Labeling(1, 0.61, 1.0, (alice, TextSpan(JORDAN, JORDAN + 6, "PER"))),
        Labeling(2, 0.25, 0.4, (alice, TextSpan(JORDAN, JORDAN + 6, "LOC"))),
        Labeling(3, 0.05, 0.1, (alice,)),
    )
    held = (SpanLabel("PER", 0.9, 0.66), SpanLabel("LOC", 0.3, 0.3), SpanLabel("O", 0.06, 0.04))
    spans = (
        DoubtfulSpan(ALICE, ALICE + 5, (SpanLabel("PER", 0.99, 0.99),), flagged=False),
        DoubtfulSpan(JORDAN, JORDAN + 6, held, flagged=True),
    )
    values: dict[str, Any] = {
        "language": "en",
        "length": 4,
        "stratum": "en/1-10",
        "pool": "en/1-10",
        "alpha": "0.05",
        "n": 120,
        "tau": 3.0,
        "guarantee": "own",
        "threshold_version": 7,
        "model_version": "m@12345678+cal.7",
        "open": False,
        "set_size": 3,
        "labelings": labelings,
        "spans": spans,
        "ranked": b"",
        "value": 1.0,
    }
    return Answer(**(values | changes))


def rendered(made: Answer, where: Target) -> list[dict[str, Any]]:
    return render(made, PlainDocument(TEXT), target=where, project="1.2", task="9")


def test_rank_one_is_last_and_ranks_have_versions_and_scores() -> None:
    predictions = rendered(answer(), target())
    assert [each["model_version"] for each in predictions] == [
        "m@12345678+cal.7 #3",
        "m@12345678+cal.7 #2",
        "m@12345678+cal.7",
    ]
    # The score of rank 1 is what tasks are ordered by; the others stand to it as their probabilities do.
    first = priority_of(1.0, first=False)
    assert [each["score"] for each in predictions] == pytest.approx([first * 0.05 / 0.61, first * 0.25 / 0.61, first])
    assert rendered(answer(open=True, set_size=None), target())[-1]["score"] < 0.01
    assert rendered(answer(set_size=0), target())[-1]["score"] < 0.01


@pytest.mark.parametrize("flag", [FLAG, ""])
def test_label_studio_accepts_every_prediction(flag: str) -> None:
    witness = LabelInterface(XML.format(flag=flag))
    predictions = rendered(answer(), target(flag)) + render_empty("m@1+cal.0")
    for prediction in predictions:
        assert witness.validate_prediction(prediction, return_errors=True) == []
        for result in prediction["result"]:
            value = result["value"]
            assert value["text"] == TEXT[value["start"] : value["end"]]
    broken = predictions[0] | {"result": [predictions[0]["result"][0] | {"from_name": "label"}]}
    assert witness.validate_prediction(broken, return_errors=True)  # the witness can say no


def test_a_flagged_span_is_two_results_of_one_region_with_the_flag_first() -> None:
    results = rendered(answer(), target())[-1]["result"]
    jordan = [each for each in results if each["value"]["start"] == JORDAN]
    assert [each["from_name"] for each in jordan] == ["doubt", "entity"]
    assert jordan[0]["id"] == jordan[1]["id"]
    assert [each["value"]["labels"] for each in jordan] == [["Needs review"], ["Person"]]
    assert jordan[0]["score"] == 0.66
    meta = jordan[0]["meta"]
    assert meta["text"] == ["Person | LOC | not an entity"]
    assert meta["candidates"] == ["Person", "LOC", "O"]
    assert meta["p_values"] == [0.9, 0.3, 0.06]
    about = {"set_size": 3, "open": False, "alpha": "0.05", "n": 120, "guarantee": "own", "threshold_version": 7}
    assert about.items() <= meta.items()
    assert "meta" not in jordan[1]
    alice = next(each for each in results if each["value"]["start"] == ALICE)
    assert alice["meta"] == about | {"probability": 0.61}
    assert alice["id"] != jordan[0]["id"]


def test_a_flagged_span_outside_the_labeling_has_the_flag_only() -> None:
    third = rendered(answer(), target())[0]["result"]
    jordan = [each for each in third if each["value"]["start"] == JORDAN]
    assert [each["from_name"] for each in jordan] == ["doubt"]


def test_without_a_flag_control_doubt_is_in_meta_only() -> None:
    results = rendered(answer(), target(flag=""))[-1]["result"]
    assert [each["from_name"] for each in results] == ["entity", "entity"]
    assert results[1]["meta"]["candidates"] == ["Person", "LOC", "O"]
    assert results[1]["score"] == 0.66


def test_ids_are_stable_over_versions_and_distinct_over_tasks_and_projects() -> None:
    def ids(made: Answer, project: str = "1.2", task: str = "9") -> list[str]:
        shown = render(made, PlainDocument(TEXT), target=target(), project=project, task=task)
        return [each["id"] for each in shown[-1]["result"]]

    assert ids(answer()) == ids(answer(threshold_version=8, model_version="m@12345678+cal.8"))
    assert not set(ids(answer())) & (set(ids(answer(), task="10")) | set(ids(answer(), project="1.3")))


def region(start: int, end: int, label: str, **more: Any) -> dict[str, Any]:
    value = {"start": start, "end": end, "labels": [label], "text": TEXT[start:end]}
    return {"from_name": "entity", "to_name": "body", "type": "labels", "value": value, "id": "r"} | more


def task(*predictions: dict[str, Any]) -> TaskIn:
    return TaskIn("9", {"body": TEXT}, None, predictions)


def test_only_what_a_person_did_is_fixed() -> None:
    given = read_given(
        [
            region(ALICE, ALICE + 5, "Person", origin="prediction"),
            region(JORDAN, JORDAN + 6, "LOC", origin="manual"),
            region(0, 1, "LOC", origin="prediction-changed"),
            region(1, 2, "Elsewhere"),
            region(0, 3, "Needs review", from_name="doubt", origin="manual"),
            region(5, 5, "LOC"),
            {"value": {"start": True, "end": 2, "labels": ["LOC"]}, "from_name": "entity"},
            {"value": {"start": 0, "end": 2, "labels": [["LOC"]]}, "from_name": "entity"},
            {"value": None, "from_name": "entity"},
        ],
        task(),
        ANY_TEXT,
        target=target(),
        model_version="V",
    )
    assert given.fixed == (TextSpan(JORDAN, JORDAN + 6, "LOC"), TextSpan(0, 1, "LOC"), TextSpan(1, 2, "Elsewhere"))
    assert given.present == {TextSpan(ALICE, ALICE + 5, "PER"), *given.fixed}


def test_our_prediction_in_view_counts_as_present() -> None:
    shown = {"model_version": "V", "result": [region(JORDAN, JORDAN + 6, "LOC"), "odd"]}
    other = {"model_version": "V #2", "result": [region(ALICE, ALICE + 5, "LOC")]}
    fixed = region(0, 1, "Person", origin="manual")
    started = region(ALICE, ALICE + 5, "Person", origin="prediction")
    given = read_given([fixed, started], task(other, shown), ANY_TEXT, target=target(), model_version="V")
    assert TextSpan(JORDAN, JORDAN + 6, "LOC") in given.present
    assert TextSpan(ALICE, ALICE + 5, "LOC") not in given.present
    blank = read_given([fixed], task(other, shown), ANY_TEXT, target=target(), model_version="V")
    assert blank.present == {TextSpan(0, 1, "PER")}


def test_a_suggestion_adds_no_span_twice() -> None:
    present = {TextSpan(ALICE, ALICE + 5, "PER")}
    made = render_suggestion(answer(), PlainDocument(TEXT), target=target(), project="1.2", task="9", present=present)
    assert [each["value"]["text"] for each in made["result"]] == ["Jordan"]
    assert [len(each["result"]) for each in made["alternatives"]] == [1, 0]
    assert (
        LabelInterface(XML.format(flag=FLAG)).validate_prediction({"result": made["result"]}, return_errors=True) == []
    )
