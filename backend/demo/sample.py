"""The sample projects: short texts written for this purpose, in nine languages and about cooking."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

import httpx

from backend.demo.errors import DemoError
from backend.labelstudio.client import project_uid


@dataclass(frozen=True)
class Sample:
    """A project to be made: what it is called, its labels, the file of its texts, and how it is spoken of."""

    title: str
    description: str
    label_config: str
    file: str
    contents: str

    def texts(self) -> list[dict[str, Any]]:
        """Return its texts, in an order that was drawn by lot."""
        lines = resources.files("backend.demo").joinpath(self.file).read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]


NAMES = Sample(
    "Surespan demo",
    "Short texts in nine languages. The best labeling is filled in; amber spans need a look.",
    """<View>
  <Labels name="label" toName="text">
    <Label value="PER" background="#e6194b"/>
    <Label value="ORG" background="#4363d8"/>
    <Label value="LOC" background="#3cb44b"/>
    <Label value="MISC" background="#911eb4"/>
  </Labels>
  <Text name="text" value="$text"/>
</View>
""",
    "texts.jsonl",
    "texts in nine languages",
)
KITCHEN = Sample(
    "Kitchen notes: labels of your own",
    "Labels that no model knows yet: tasks come blank until a model has learnt them from yours.",
    """<View>
  <Labels name="label" toName="text">
    <Label value="Ingredient" background="#3cb44b"/>
    <Label value="Tool" background="#4363d8"/>
    <Label value="Dish" background="#e6194b"/>
  </Labels>
  <Text name="text" value="$text"/>
</View>
""",
    "kitchen.jsonl",
    "notes from a kitchen, whose labels no model knows yet",
)


def sample_texts() -> list[dict[str, Any]]:
    """Return the texts of the first project, each with its language.

    >>> sorted({each["language"] for each in sample_texts()})
    ['de', 'en', 'es', 'fr', 'it', 'nl', 'pl', 'pt', 'ru']
    """
    return NAMES.texts()


class SampleProjects:
    """The sample projects on a Label Studio server, reached with the first user's token."""

    def __init__(self, url: str, token: str) -> None:
        headers = {"Authorization": f"Token {token}"}
        self._client = httpx.Client(base_url=url, headers=headers, timeout=120.0, trust_env=False)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def exists(self, number: int) -> bool:
        """Return whether the project is (still) there."""
        return self._client.get(f"/api/projects/{number}/").status_code == 200

    def create(self, sample: Sample) -> int:
        """Make a project with its texts and return its number.

        Tasks are given out at random, so that every label may calibrate.
        """
        body = {
            "title": sample.title,
            "description": sample.description,
            "label_config": sample.label_config,
            "sampling": "Uniform sampling",
        }
        number = int(self._call("POST", "/api/projects/", body)["id"])
        self._call("POST", f"/api/projects/{number}/import", [{"data": each} for each in sample.texts()])
        return number

    def retrieve_predictions(self, number: int) -> int:
        """Have Label Studio ask the backend about every task; return how many tasks have predictions now."""
        everything = {"selectedItems": {"all": True, "excluded": []}, "project": number}
        self._call("POST", "/api/dm/actions/", everything, id="retrieve_tasks_predictions", project=number)
        return self.predicted(number)

    def predicted(self, number: int) -> int:
        """Return how many tasks have predictions."""
        query = {"filters": {"conjunction": "and", "items": [_HAS_PREDICTIONS]}}
        params = {"project": number, "page": 1, "page_size": 1, "query": json.dumps(query)}
        return int(self._call("GET", "/api/tasks/", None, **params)["total"])

    def uid(self, number: int) -> str:
        """Return the name under which the backend knows the project."""
        return project_uid(self._call("GET", f"/api/projects/{number}/"))

    def _call(self, method: str, path: str, body: object = None, **params: object) -> Any:  # noqa: ANN401 - JSON
        answer = self._client.request(method, path, json=body, params={name: str(v) for name, v in params.items()})
        if not answer.is_success:
            raise DemoError(f"Label Studio answered {answer.status_code} to {method} {path}: {answer.text[:300]}")
        return answer.json() if answer.content else None


_HAS_PREDICTIONS = {
    "filter": "filter:tasks:total_predictions",
    "operator": "greater",
    "type": "Number",
    "value": 0,
}
