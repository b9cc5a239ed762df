"""Requests of the shapes that Label Studio 1.23 sends, written for these tests."""

from __future__ import annotations

from typing import Any

PROJECT = "31.1790000000"
STAMP = "2026-11-02T09:00:00.000000Z"

CONFIG = """<View>
  <Labels name="label" toName="text">
    <Label value="Person" predicted_values="PER"/><Label value="LOC"/>
  </Labels>
  <Labels name="flag" toName="text"><Label value="Needs review" background="#ffb000"/></Labels>
  <Text name="text" value="$text" showLabels="true"/>
</View>"""
PLAIN_CONFIG = """<View><Labels name="label" toName="text"><Label value="PER"/><Label value="ORG"/></Labels>
<Text name="text" value="$text"/></View>"""

TEXTS = [
    "Anna Berg wohnt seit 1998 in Wien.",
    "Giulia Conti vive a Torino 🎉 con la sorella.",
    "\r\n  John Carter visited Boston.\r\nThen he left.",
    "nothing to see here",
    "",
]


def task(number: int, text: Any, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "data": {"text": text},
        "meta": {},
        "created_at": STAMP,
        "updated_at": STAMP,
        "is_labeled": False,
        "overlap": 1,
        "inner_id": number,
        "total_annotations": 0,
        "cancelled_annotations": 0,
        "total_predictions": 0,
        "comment_count": 0,
        "unresolved_comment_count": 0,
        "last_comment_updated_at": None,
        "project": 31,
        "updated_by": None,
        "file_upload": None,
        "comment_authors": [],
        "annotations": [],
        "predictions": [],
        **more,
    }


def predict(tasks: list[Any], *, config: str = CONFIG, project: str = PROJECT, context: Any = None) -> dict[str, Any]:
    return {
        "tasks": tasks,
        "project": project,
        "label_config": config,
        "params": {"login": None, "password": None, "context": context},
    }


def setup(config: str = CONFIG, *, project: str = PROJECT) -> dict[str, Any]:
    return {
        "project": project,
        "schema": config,
        "hostname": "http://labels.example:8080",
        "access_token": "not-a-real-token-0123456789",
        "extra_params": {"note": 1},
    }


def region(start: int, end: int, text: str, label: str, **more: Any) -> dict[str, Any]:
    value = {"start": start, "end": end, "text": text[start:end], "labels": [label]}
    return {"id": f"r{start}", "from_name": "label", "to_name": "text", "type": "labels", "value": value, **more}


def project_object(number: int = 31) -> dict[str, Any]:
    return {
        "id": number,
        "title": "Letters",
        "task_number": 3,
        "label_config": CONFIG,
        "token": "project-token-never-to-be-kept",
        "task_data_login": "reader",
        "task_data_password": "password-never-to-be-kept",
        "sampling": "Sequential sampling",
        "model_version": "",
        "created_at": STAMP,
    }


def annotation(number: int, *, task_id: int = 4, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "result": [region(0, 4, TEXTS[0], "Person", origin="manual")],
        "was_cancelled": False,
        "ground_truth": False,
        "created_at": STAMP,
        "updated_at": STAMP,
        "lead_time": 3.5,
        "prediction": {},
        "result_count": 1,
        "unique_id": f"00000000-0000-4000-8000-{number:012d}",
        "bulk_created": False,
        "task": task_id,
        "project": 31,
        "completed_by": 1,
        "parent_prediction": None,
        "parent_annotation": None,
        **more,
    }


def events() -> list[dict[str, Any]]:
    """One delivery of every kind that Label Studio has, and one that it does not have yet."""
    project = project_object()
    about = task(4, TEXTS[0])
    return [
        {"action": "ANNOTATION_CREATED", "annotation": annotation(1), "task": about, "project": project},
        {"action": "ANNOTATION_UPDATED", "annotation": annotation(1), "task": about, "project": project},
        {
            "action": "ANNOTATIONS_CREATED",
            "annotation": [annotation(2), annotation(3)],
            "task": [about],
            "project": project,
        },
        {"action": "ANNOTATIONS_DELETED", "annotations": [{"id": 2}, {"id": 3}], "project": project},
        {"action": "TASKS_CREATED", "tasks": [about, task(5, TEXTS[1])], "project": project},
        {"action": "TASKS_DELETED", "tasks": [{"id": 5}], "project": project},
        {"action": "START_TRAINING", "project": project},
        {"action": "PROJECT_UPDATED", "project": project},
        {"action": "SOMETHING_OF_NEXT_YEAR", "planet": {"id": 3}, "project": project},
    ]
