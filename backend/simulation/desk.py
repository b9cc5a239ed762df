"""A Label Studio in memory: as much of the server as publishing, accepting and taking back ask of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any
from xml.sax.saxutils import quoteattr

from backend.errors import LabelStudioError
from backend.labelstudio.client import PAGE, Json, LabelStudio

ACCOUNT = 1  # whose token the backend has
PERSON = 2
FLAG = "Needs review"
_BACKEND = 1


def label_config(labels: Sequence[str]) -> str:
    """Return a label config with these labels and one for doubtful spans, as `surespan connect` makes it."""
    offered = "".join(f"<Label value={quoteattr(label)}/>" for label in labels)
    return (
        f'<View><Labels name="label" toName="text">{offered}</Labels>'
        f'<Labels name="flag" toName="text"><Label value="{FLAG}"/></Labels>'
        '<Text name="text" value="$text"/></View>'
    )


class Desk(LabelStudio):
    """One project with its tasks, predictions and annotations, in the place of a server.

    `answers` says whether the project has its backend: only then is anything published. What nobody looks at in between
    need not be brought up to date.
    """

    def __init__(self, uid: str, config: str, *, sampling: str, tasks: Mapping[int, Mapping[str, Any]]) -> None:
        number, _, created = uid.partition(".")
        self.number = int(number)
        self.answers = False
        self._project: Json = {
            "id": self.number,
            "title": "simulated",
            "label_config": config,
            "sampling": sampling,
            "created_at": datetime.fromtimestamp(int(created), UTC).isoformat(),
            "model_version": "",
            "task_number": len(tasks),
            "num_tasks_with_annotations": 0,
        }
        self._tasks: dict[int, Json] = {
            number: {
                "id": number,
                "data": dict(data),
                "predictions": [],
                "annotations": [],
                "drafts": [],
                "draft_exists": False,
            }
            for number, data in sorted(tasks.items())
        }
        self._title = ""
        self._ids = count(1)
        self._views: list[Json] = []

    @property
    def url(self) -> str:
        """Where the server would be."""
        return "http://simulated"

    def close(self) -> None:
        """There is no connection to close."""

    def task(self, number: int) -> Json:
        """Return a task."""
        return self._tasks[number]

    def annotate(self, number: int, result: Sequence[Json], *, seconds: float) -> Json:
        """Have a person submit an annotation; returns what a webhook says about it."""
        made = self._annotation(number, result, by=PERSON, lead_time=seconds)
        # Of the project only its name: nothing else of it ever changes.
        project = {name: self._project[name] for name in ("id", "created_at")}
        return {
            "action": "ANNOTATION_CREATED",
            "annotation": made,
            "task": {"id": number, "data": self._tasks[number]["data"]},
            "project": project,
        }

    def accepted(self) -> dict[int, list[Json]]:
        """Return the tasks that were accepted and not taken back, with the regions of their labels."""
        return {
            number: each["result"]
            for number, task in self._tasks.items()
            for each in task["annotations"]
            if each["completed_by"] == ACCOUNT
        }

    def whoami(self) -> Json:
        """Return whose token it is."""
        return {"id": ACCOUNT}

    def project(self, number: int) -> Json:  # noqa: ARG002 - there is one
        """Return the project."""
        predictions = sum(len(task["predictions"]) for task in self._tasks.values())
        return self._project | {"total_predictions_number": predictions}

    def update_project(self, number: int, **changes: object) -> Json:  # noqa: ARG002
        """Change fields of the project."""
        self._project |= changes
        return self._project

    def backends(self, project: int) -> list[Json]:  # noqa: ARG002
        """Return the backend while there is one."""
        return [{"id": _BACKEND, "title": self._title, "url": "", "model_version": ""}] if self.answers else []

    def update_backend(self, number: int, *, project: int, url: str, title: str, auth: Mapping[str, str]) -> Json:  # noqa: ARG002
        """Name the backend."""
        self._title = title
        return {"id": number, "title": title}

    def views(self, project: int) -> list[Json]:  # noqa: ARG002
        """Return the tabs."""
        return self._views

    def create_view(self, project: int, data: Mapping[str, Any]) -> Json:  # noqa: ARG002
        """Make a tab."""
        self._views.append({"id": next(self._ids), "data": dict(data)})
        return self._views[-1]

    def update_view(self, number: int, *, project: int, data: Mapping[str, Any]) -> Json:  # noqa: ARG002
        """Change a tab."""
        view = next(each for each in self._views if each["id"] == number)
        view["data"] = dict(data)
        return view

    def pick_tasks(self, project: int, numbers: Sequence[int], *, whole: bool = True) -> list[Json]:  # noqa: ARG002
        """Return those of these tasks that exist."""
        return [self._tasks[number] for number in numbers if number in self._tasks]

    def tasks_after(
        self,
        project: int,  # noqa: ARG002
        *,
        after: int = 0,
        filters: Sequence[Mapping[str, Any]] = (),  # noqa: ARG002 - publishing asks for tasks without an annotation
        size: int = PAGE,
        whole: bool = True,  # noqa: ARG002
    ) -> Iterator[list[Json]]:
        """Yield pages of the tasks without an annotation, by id."""
        free = [task for number, task in self._tasks.items() if number > after and not task["annotations"]]
        for begin in range(0, len(free), size):
            yield free[begin : begin + size]

    def import_predictions(self, project: int, predictions: Sequence[Mapping[str, Any]]) -> int:  # noqa: ARG002
        """Store predictions."""
        now = datetime.now(UTC).isoformat()
        for each in predictions:
            kept = {"id": next(self._ids), "created_at": now} | dict(each)
            self._tasks[int(each["task"])]["predictions"].append(kept)
        return len(predictions)

    def delete_prediction(self, number: int) -> None:
        """Remove a prediction."""
        for task in self._tasks.values():
            task["predictions"] = [each for each in task["predictions"] if each["id"] != number]

    def create_annotation(self, task: int, annotation: Mapping[str, Any]) -> Json:
        """Make the annotation of a task that is accepted."""
        return self._annotation(task, annotation["result"], by=ACCOUNT, prediction=annotation["parent_prediction"])

    def annotation(self, number: int) -> Json:
        """Return an annotation."""
        for task in self._tasks.values():
            for each in task["annotations"]:
                if each["id"] == number:
                    found: Json = each
                    return found
        raise LabelStudioError(
            f"GET /api/annotations/{number}/: expected an annotation, got none", status=404, asked="GET"
        )

    def delete_annotation(self, number: int) -> None:
        """Remove an annotation."""
        task = self._tasks[self.annotation(number)["task"]]
        task["annotations"] = [each for each in task["annotations"] if each["id"] != number]

    def _annotation(
        self,
        task: int,
        result: Sequence[Json],
        *,
        by: int,
        lead_time: float | None = None,
        prediction: int | None = None,
    ) -> Json:
        now = datetime.now(UTC).isoformat()
        made: Json = {
            "id": next(self._ids),
            "task": task,
            "result": list(result),
            "was_cancelled": False,
            "ground_truth": False,
            "created_at": now,
            "updated_at": now,
            "updated_by": by,
            "completed_by": by,
            "lead_time": lead_time,
            "parent_prediction": prediction,
            "parent_annotation": None,
        }
        self._tasks[task]["annotations"].append(made)
        return made
