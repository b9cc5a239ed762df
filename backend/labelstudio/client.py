"""Label Studio's API as far as Surespan needs it; everything that talks to the server goes through `LabelStudio`.

Every call was tried against Label Studio 1.23.2; what it does beyond its documentation is in docs/decisions/0008.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from backend.labelstudio.payloads import join_uid, read_moment
from backend.labelstudio.transport import Transport

Json = dict[str, Any]

PICKED = 200  # task ids that fit into an address, whatever server stands in between
PAGE = 100  # tasks of a page, with their annotations and predictions
MOMENT = "%Y-%m-%dT%H:%M:%S.%fZ"


def project_uid(project: Mapping[str, Any]) -> str:
    """Return the uid under which Label Studio names a project to its backends: `<id>.<created timestamp>`.

    >>> project_uid({"id": 1, "created_at": "2026-11-16T05:24:34.161204Z"})
    '1.1794806674'
    """
    created = read_moment(str(project["created_at"]))
    return join_uid(project["id"], created)


class LabelStudio:
    """A Label Studio server, seen with one token: a legacy one or a personal access token.

    Every method raises `LabelStudioError` with the status, what was asked and what to do.
    """

    def __init__(self, url: str, api_key: str, *, transport: Transport | None = None) -> None:
        self.http = transport or Transport(url, api_key)

    @property
    def url(self) -> str:
        """The server's address, without a slash at its end."""
        return self.http.url

    def close(self) -> None:
        """Close the connections."""
        self.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def whoami(self) -> Json:
        """Return the token's user; the cheapest way to find out whether the token is valid."""
        answer: Json = self.http.call("GET", "/api/current-user/whoami")
        return answer

    def version(self) -> str:
        """Return the server's release."""
        return str(self.http.call("GET", "/api/version").get("release", "unknown"))

    # Projects

    def project(self, number: int) -> Json:
        """Return a project."""
        answer: Json = self.http.call("GET", f"/api/projects/{number}/")
        return answer

    def update_project(self, number: int, **changes: object) -> Json:
        """Change fields of a project and return it."""
        answer: Json = self.http.call("PATCH", f"/api/projects/{number}/", body=changes)
        return answer

    # Backends

    def backends(self, project: int) -> list[Json]:
        """Return the backends of a project. Label Studio asks each for /health and /setup before it answers."""
        answer: list[Json] = self.http.call("GET", "/api/ml/", params={"project": project})
        return answer

    def create_backend(self, project: int, *, url: str, title: str, auth: Mapping[str, str]) -> Json:
        """Register a backend. Label Studio calls its /health and /setup, and makes a webhook to it."""
        body = {"project": project, "url": url, "title": title, "is_interactive": False, **auth}
        answer: Json = self.http.call("POST", "/api/ml/", body=body)
        return answer

    def update_backend(self, number: int, *, project: int, url: str, title: str, auth: Mapping[str, str]) -> Json:
        """Change a backend. Url, project and credentials go along, because the server checks them before it stores."""
        body = {"project": project, "url": url, "title": title, **auth}
        answer: Json = self.http.call("PATCH", f"/api/ml/{number}", body=body)
        return answer

    def delete_backend(self, number: int) -> None:
        """Remove a backend; its webhook stays."""
        self.http.call("DELETE", f"/api/ml/{number}")

    # Webhooks

    def webhooks(self, project: int) -> list[Json]:
        """Return the webhooks of a project."""
        answer: list[Json] = self.http.call("GET", "/api/webhooks/", params={"project": project})
        return answer

    def create_webhook(self, project: int, *, url: str, headers: Mapping[str, str]) -> Json:
        """Make a webhook for all events of a project."""
        body = {
            "project": project,
            "url": url,
            "send_payload": True,
            "send_for_all_actions": True,
            "headers": dict(headers),
        }
        answer: Json = self.http.call("POST", "/api/webhooks/", body=body)
        return answer

    def update_webhook(self, number: int, *, url: str, headers: Mapping[str, str]) -> Json:
        """Set a webhook's address and headers, and have it send every event with its payload."""
        body = {
            "url": url,
            "headers": dict(headers),
            "is_active": True,
            "send_payload": True,
            "send_for_all_actions": True,
        }
        answer: Json = self.http.call("PATCH", f"/api/webhooks/{number}/", body=body)
        return answer

    def switch_on_webhook(self, number: int, *, url: str) -> None:
        """Have a webhook send again; its address goes along, because the server checks it before it stores."""
        self.http.call("PATCH", f"/api/webhooks/{number}/", body={"url": url, "is_active": True})

    def delete_webhook(self, number: int) -> None:
        """Remove a webhook."""
        self.http.call("DELETE", f"/api/webhooks/{number}/")

    # Data Manager tabs

    def views(self, project: int) -> list[Json]:
        """Return the tabs of a project's Data Manager."""
        answer: list[Json] = self.http.call("GET", "/api/dm/views/", params={"project": project})
        return answer

    def create_view(self, project: int, data: Mapping[str, Any]) -> Json:
        """Make a tab."""
        answer: Json = self.http.call("POST", "/api/dm/views/", body={"project": project, "data": dict(data)})
        return answer

    def update_view(self, number: int, *, project: int, data: Mapping[str, Any]) -> Json:
        """Change a tab."""
        body = {"project": project, "data": dict(data)}
        answer: Json = self.http.call("PATCH", f"/api/dm/views/{number}/", body=body)
        return answer

    def delete_view(self, number: int) -> None:
        """Remove a tab."""
        self.http.call("DELETE", f"/api/dm/views/{number}/")

    # Tasks

    def pick_tasks(self, project: int, numbers: Sequence[int], *, whole: bool = True) -> list[Json]:
        """Return those of these tasks (at most `PICKED`) that exist."""
        chosen = {"filter": "filter:tasks:id", "operator": "in_list", "type": "Number", "value": list(numbers)}
        return self.tasks(project, filters=[chosen], size=len(numbers), whole=whole) if numbers else []

    def tasks(
        self,
        project: int,
        *,
        filters: Sequence[Mapping[str, Any]] = (),
        order: str = "tasks:id",
        size: int = PAGE,
        whole: bool = True,
    ) -> list[Json]:
        """Return the first `size` tasks that pass all filters, in an order; `whole` adds annotations and predictions.

        Only first pages are ever asked for: on a server that people work on, later ones shift between two calls. Go on
        by a filter on what came last (`changed_since`, `tasks_after`).
        """
        query = {"filters": {"conjunction": "and", "items": [dict(each) for each in filters]}, "ordering": [order]}
        params: dict[str, Any] = {
            "project": project,
            "page": 1,
            "page_size": size,
            "query": json.dumps(query, separators=(",", ":")),
        }
        if whole:
            params["fields"] = "all"
        answer: list[Json] = self.http.call("GET", "/api/tasks/", params=params, bulk=True)["tasks"]
        return answer

    def tasks_after(
        self,
        project: int,
        *,
        after: int = 0,
        filters: Sequence[Mapping[str, Any]] = (),
        size: int = PAGE,
        whole: bool = True,
    ) -> Iterator[list[Json]]:
        """Yield pages of tasks by id, those after the id `after`; bounded memory, stable while people work."""
        while True:
            page = self.tasks(project, filters=[*filters, where("id", "greater", after)], size=size, whole=whole)
            if page:
                yield page
            if len(page) < size:
                return
            after = int(page[-1]["id"])

    def changed_since(self, project: int, *, since: datetime, size: int = PAGE) -> Iterator[list[Json]]:
        """Yield pages of tasks that changed at or after `since`, in order of their change.

        A task changes when it is edited and when an annotation of it is made, edited or deleted; a draft does not
        count. The last task of a page may come again at the head of the next one. Tasks that changed at the same
        instant (one action on many) are walked by id.
        """
        while True:
            page = self.tasks(
                project,
                filters=[where("updated_at", "greater_or_equal", since)],
                order="tasks:updated_at",
                size=size,
            )
            if not page:
                return
            first, last = read_moment(page[0]["updated_at"]), read_moment(page[-1]["updated_at"])
            if len(page) < size:
                yield page
                return
            if last > since:
                yield page
                since = last
                continue
            together = [where("updated_at", "greater_or_equal", first), where("updated_at", "less_or_equal", last)]
            yield from self.tasks_after(project, filters=together, size=size)
            since = last + timedelta(microseconds=1)

    def import_predictions(self, project: int, predictions: Sequence[Mapping[str, Any]]) -> int:
        """Store predictions, and return how many the server kept: it drops invalid ones without a word."""
        body = [dict(each) for each in predictions]
        answer = self.http.call("POST", f"/api/projects/{project}/import/predictions", body=body, bulk=True)
        return int(answer["created"])

    # Annotations

    def create_annotation(self, task: int, annotation: Mapping[str, Any]) -> Json:
        """Make an annotation of a task, and return it. One with a `unique_id` that is there already is refused: 409."""
        answer: Json = self.http.call("POST", f"/api/tasks/{task}/annotations/", body=dict(annotation))
        return answer

    def annotation(self, number: int) -> Json:
        """Return an annotation."""
        answer: Json = self.http.call("GET", f"/api/annotations/{number}/")
        return answer

    def delete_annotation(self, number: int) -> None:
        """Remove one annotation: the server has no call for several that leaves what others made on a task alone."""
        self.http.call("DELETE", f"/api/annotations/{number}/")

    def delete_prediction(self, number: int) -> None:
        """Remove one prediction."""
        self.http.call("DELETE", f"/api/predictions/{number}/")


def where(column: str, operator: str, value: object) -> Json:
    """Return a filter of the Data Manager.

    >>> where("id", "greater", 5)
    {'filter': 'filter:tasks:id', 'operator': 'greater', 'type': 'Number', 'value': 5}
    """
    kind = "Number"
    if isinstance(value, datetime):
        kind, value = "Datetime", value.astimezone(UTC).strftime(MOMENT)
    elif isinstance(value, str):
        kind = "String"
    return {"filter": f"filter:tasks:{column}", "operator": operator, "type": kind, "value": value}
