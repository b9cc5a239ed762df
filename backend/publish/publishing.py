"""The job that makes Label Studio agree: resumable, a page of tasks at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Session

from backend.connect import CONNECTION, credentials
from backend.errors import LabelStudioError
from backend.labelstudio.client import Json, LabelStudio, project_uid, where
from backend.labelstudio.tabs import BLIND_AUDIT, REVIEW_FIRST, blind_tab, tabs_for
from backend.labelstudio.versions import base_version
from backend.publish.fresh import FreshPredictions
from backend.publish.stale import (
    as_items,
    doubled,
    has_superseded,
    has_version,
    made_for_other_text,
    superseded,
)
from backend.serving.views import View, Views
from backend.store.republish import blind_tasks, opened_since
from backend.store.state import get_state, update_state
from backend.store.types import JobRecord, ProjectRecord

if TYPE_CHECKING:
    from backend.work import WorkContext

PUBLISH = "publish"
EDITED = "edited"

PAGE = 50
# A removal takes a tenth of a second and more; the rest is for the next run.
MOST_REMOVED = 500
MOST_BLIND = 100  # tasks in the tab: the browser draws a row of controls for each


@dataclass
class Published:
    """What a run did, and what it left for later."""

    project: str
    version: str
    changes: list[str] = field(default_factory=list)
    looked_at: int = 0
    refreshed: int = 0
    reused: int = 0
    refused: int = 0
    removed: int = 0
    at_work: int = 0
    stale: int = 0

    @property
    def agrees(self) -> bool:
        """Whether nothing is left to do."""
        return not (self.at_work or self.stale)

    def as_dict(self) -> dict[str, Any]:
        """Return it for programs."""
        return vars(self) | {"agrees": self.agrees}


def run_publish(context: WorkContext, job: JobRecord) -> dict[str, Any]:
    """Publish the project of a job; does nothing, and says so, where no server is set or nothing is connected.

    Raises:
        LabelStudioError: when the server cannot be asked or refuses; the job is tried again.
    """
    client = context.label_studio()
    if client is None:
        return {"skipped": "LABEL_STUDIO_URL and LABEL_STUDIO_API_KEY are not set"}
    project = context.project_of(job)
    if not project.key.isdigit():
        return {"skipped": "not a project of Label Studio"}
    with client:
        made = publish_project(context, client, project)
    return {"skipped": "the project has no backend of ours"} if made is None else made.as_dict()


def publish_project(context: WorkContext, client: LabelStudio, project: ProjectRecord) -> Published | None:
    """Make the server agree with the version that serves now; None when the project has no backend of ours."""
    number = int(project.key)
    remote = client.project(number)
    if project_uid(remote) != project.uid:
        raise LabelStudioError(
            f"expected project {number} of {client.url} to be {project.uid}, got {project_uid(remote)}: this database "
            "belongs to another server, or the project was made anew",
            status=None,
            asked=f"GET /api/projects/{number}/",
        )
    with context.store.read() as session:
        connection = get_state(session, project.id, CONNECTION) or {}
    backend = _our_backend(client.backends(number), connection)
    if backend is None:
        return None
    return _Publishing(context, client, project, remote, connection).run(backend)


def _our_backend(backends: Sequence[Json], connection: Json) -> Json | None:
    known = [each for each in backends if each["id"] == connection.get("backend")]
    # A backend that someone added by hand is known by the version it answers.
    answering = [each for each in backends if base_version(each["model_version"]) is not None]
    return next(iter(known or answering), None)


class _Publishing:
    def __init__(
        self, context: WorkContext, client: LabelStudio, project: ProjectRecord, remote: Json, connection: Json
    ) -> None:
        self._context, self._client, self._project = context, client, project
        self._remote, self._connection = remote, connection
        self._number = int(project.key)
        self._config = str(remote["label_config"])
        # Asked anew, not as it was a moment ago: the version to publish was made in that moment.
        views = Views(context.settings, context.store, context.loader, poll=0.0, models=context.views.models)
        self._view: View = views.view(project.uid, self._config)
        self._version = self._view.model_version
        self._made = Published(project.uid, self._version)
        self._postponed: set[int] = set()  # edited tasks that somebody works on
        self._fresh = FreshPredictions(context, project, self._view, label_config=self._config)
        with context.store.read() as session:
            self._state = get_state(session, project.id, PUBLISH) or {}

    def run(self, backend: Json) -> Published:
        self._name(backend)
        edited = [int(each) for each in self._state.get(EDITED, [])]
        same = self._state.get("version") == self._version
        after = int(self._state.get("after", 0)) if same and not edited else 0
        unlabelled = [where("total_annotations", "equal", 0)]
        total = self._remote.get("task_number")
        for page in self._client.tasks_after(self._number, after=after, filters=unlabelled, size=PAGE):
            self._refresh(page, edited)
            self._keep({"version": self._version, "after": int(page[-1]["id"])})
            note = f"{self._made.refreshed} refreshed, {self._made.removed} removed"
            self._context.heartbeat(done=self._made.looked_at, total=total, note=note)
        self._fresh.close()
        self._made.reused = self._fresh.reused
        self._set_version()
        self._keep_tabs()
        self._finish(edited)
        return self._made

    def _name(self, backend: Json) -> None:
        if backend["title"] != self._version:
            self._client.update_backend(
                int(backend["id"]),
                project=self._number,
                url=str(backend["url"]),
                title=self._version,
                auth=credentials(self._context.settings),
            )
            self._made.changes.append(f"named the backend {self._version}")
        self._set_version()

    def _set_version(self) -> None:
        """Set the project's version: renaming may have done so, removing a version undoes it."""
        now = self._client.project(self._number)
        if now["model_version"] != self._version:
            self._client.update_project(self._number, model_version=self._version)
            self._made.changes.append(f"set the project's model version to {self._version}")

    def _refresh(self, page: Sequence[Json], edited: Sequence[int]) -> None:
        made = self._made
        made.looked_at += len(page)
        at_work = self._at_work(page)
        wanted = [task for task in page if not has_version(task, self._version) or made_for_other_text(task, edited)]
        ready = [task for task in wanted if int(task["id"]) not in at_work]
        made.at_work += len(wanted) - len(ready)
        self._postponed |= at_work & set(edited)
        if ready:
            self._add(ready)
            for task in ready:
                # Their words stand elsewhere in the text now, or nowhere: nobody is helped by keeping them.
                self._remove(made_for_other_text(task, edited))
        before = datetime.now(UTC) - self._patience
        for task in page:
            if int(task["id"]) in at_work or not has_superseded(task, self._version):
                made.stale += has_superseded(task, self._version)
                continue
            old = superseded(task, self._version, before=before)
            if old and made.removed + len(old) <= MOST_REMOVED:
                self._remove(old)
            else:
                made.stale += 1

    @property
    def _patience(self) -> timedelta:
        return timedelta(minutes=self._context.settings.at_work_minutes)

    def _at_work(self, page: Sequence[Json]) -> set[int]:
        numbers = [str(task["id"]) for task in page]
        since = datetime.now(UTC) - self._patience
        with self._context.store.read() as session:
            opened = opened_since(session, self._project.id, tasks=numbers, since=since)
        return {int(task["id"]) for task in page if task["draft_exists"] or str(task["id"]) in opened}

    def _add(self, tasks: Sequence[Json]) -> None:
        entries = self._fresh.of(tasks)
        items = [item for task, entry in zip(tasks, entries, strict=True) for item in as_items(int(task["id"]), entry)]
        created = self._client.import_predictions(self._number, items)
        there = self._client.pick_tasks(self._number, [int(task["id"]) for task in tasks])
        for task in there:
            self._remove(doubled(task, self._version))
        lacking = sum(not has_version(task, self._version) for task in there)
        if created != len(items):
            self._context.log.warning(
                "Label Studio did not take all predictions",
                extra={"project": self._project.uid, "sent": len(items), "taken": created, "tasks": lacking},
            )
        self._made.refused += lacking
        self._made.refreshed += len(there) - lacking

    def _remove(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            try:
                self._client.delete_prediction(number)
            except LabelStudioError as error:
                if error.status != 404:  # somebody was faster
                    raise
            self._made.removed += 1
            if self._made.removed % 50 == 0:
                self._context.heartbeat()

    def _keep_tabs(self) -> None:
        """Keep the tab of blind tasks up to date, and add the review tab when the order has become review."""
        known: dict[str, int] = dict(self._connection.get("views") or {})
        if not self._connection.get("backend"):
            return
        there = {each["id"]: each for each in self._client.views(self._number)}
        with self._context.store.read() as session:
            blind = sorted(int(each) for each in blind_tasks(session, self._project.id, limit=MOST_BLIND))
        wanted = tabs_for(str(self._remote["sampling"]))
        tab = blind_tab(blind)
        if blind and known.get(BLIND_AUDIT) not in there:
            known[BLIND_AUDIT] = int(self._client.create_view(self._number, tab)["id"])
        elif blind and there[known[BLIND_AUDIT]]["data"].get("filters") != tab["filters"]:
            self._client.update_view(known[BLIND_AUDIT], project=self._number, data=tab)
        if REVIEW_FIRST in wanted and known.get(REVIEW_FIRST) not in there:
            known[REVIEW_FIRST] = int(self._client.create_view(self._number, wanted[REVIEW_FIRST])["id"])

        def views(value: Json) -> Json:
            return value | {"views": known} if value.get("backend") else value

        if known != self._connection.get("views"):
            self._context.store.run(lambda session: update_state(session, self._project.id, CONNECTION, views))

    def _finish(self, edited: Sequence[int]) -> None:
        now = datetime.now(UTC)
        # What is left now (a task someone has open, predictions someone may have open) can be done then.
        again = None if self._made.agrees else (now + max(self._patience, timedelta(minutes=1))).isoformat()
        last = self._made.as_dict() | {"finished_at": now.isoformat()}

        def finished(value: Json) -> Json:
            left = sorted((set(value.get(EDITED, [])) - set(edited)) | self._postponed)
            return value | {"after": 0, "again_at": again, "last": last, EDITED: left}

        self._context.store.run(lambda session: update_state(session, self._project.id, PUBLISH, finished))

    def _keep(self, progress: Json) -> None:
        def work(session: Session) -> None:
            update_state(session, self._project.id, PUBLISH, lambda value: value | progress)

        self._context.store.run(work)
