"""The job that makes Label Studio agree: resumable, a page of tasks at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from backend.connection.connect import credentials
from backend.domain.records import JobRecord, ProjectRecord
from backend.errors import LabelStudioError
from backend.jobs.context import WorkContext
from backend.labelstudio.client import PICKED, Json, LabelStudio, project_uid, where
from backend.labelstudio.tabs import BLIND_AUDIT, EVIDENCE_FIRST, REVIEW_FIRST, blind_tab, evidence_tab, tabs_for
from backend.labelstudio.versions import base_version
from backend.models.views import View, Views
from backend.prediction.stopwatch import Stopwatch
from backend.publish.fresh import FreshPredictions, Ready
from backend.publish.stale import (
    as_items,
    doubled,
    has_ours,
    has_superseded,
    has_version,
    made_for_other_text,
    superseded,
)
from backend.store.republish import blind_tasks, opened_since
from backend.store.state import CONNECTION, EDITED_TASKS, PUBLISH, get_state, update_state

PAGE = 50
# A removal takes a tenth of a second and more; the rest is for the next run.
MOST_REMOVED = 500
MOST_BLIND = 100  # tasks in the tab: the browser draws a row of controls for each
MOST_SWEEPS = 3
MOST_NAMED = 100  # tasks without a prediction whose numbers are told

Page = list[Json]
Ahead = Callable[[FreshPredictions, Iterator[tuple[Page, Page]]], Iterator[tuple[Page, Ready]]]
"""Given pages with those of their tasks that want predictions, yields them in order with what was made for them."""


@dataclass(frozen=True)
class Bulk:
    """How `surespan preannotate` publishes: other processes tag ahead, pages are large, and all is checked at the end.

    `progress` is told the stage, how many tasks are done, and of how many.
    """

    ahead: Ahead
    page: int
    progress: Callable[[str, int, int | None], None]


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
    lacking: list[int] = field(default_factory=list)  # numbers of tasks whose predictions the server does not take
    seconds: dict[str, float] = field(default_factory=dict)

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
        published = publish_project(context, client, project)
    return {"skipped": "the project has no Surespan backend"} if published is None else published.as_dict()


def publish_project(
    context: WorkContext, client: LabelStudio, project: ProjectRecord, *, bulk: Bulk | None = None
) -> Published | None:
    """Make the server agree with the version that serves now; None when the project has no backend of ours.

    In bulk a project without a backend gets its predictions too.
    """
    number = int(project.key)
    remote = client.project(number)
    if project_uid(remote) != project.uid:
        raise LabelStudioError(
            f"expected project {number} of {client.url} to be {project.uid}, got {project_uid(remote)}: this database "
            "belongs to another server, or the project was recreated",
            status=None,
            asked=f"GET /api/projects/{number}/",
        )
    with context.store.read() as session:
        connection = get_state(session, project.id, CONNECTION) or {}
    backend = _our_backend(client.backends(number), connection)
    if backend is None and bulk is None:
        return None
    return _Publishing(context, client, project, remote, bulk).run(backend)


def _our_backend(backends: Sequence[Json], connection: Json) -> Json | None:
    known = [each for each in backends if each["id"] == connection.get("backend")]
    # A backend that someone added by hand is known by the version it answers.
    answering = [each for each in backends if base_version(each["model_version"]) is not None]
    return next(iter(known or answering), None)


class _Publishing:
    def __init__(
        self,
        context: WorkContext,
        client: LabelStudio,
        project: ProjectRecord,
        remote: Json,
        bulk: Bulk | None,
    ) -> None:
        self._context, self._client, self._project = context, client, project
        self._remote, self._bulk = remote, bulk
        self._number = int(project.key)
        self._config = str(remote["label_config"])
        # Asked anew, not as it was a moment ago: the version to publish was made in that moment.
        views = Views(context.settings, context.store, context.loader, poll=0.0, models=context.views.models)
        self._view: View = views.view(project.uid, self._config)
        self._version = self._view.model_version
        self._report = Published(project.uid, self._version)
        self._watch = Stopwatch()
        self._postponed: set[int] = set()  # edited tasks that somebody works on
        self._fresh = FreshPredictions(context, project, self._view, label_config=self._config)
        with context.store.read() as session:
            self._state = get_state(session, project.id, PUBLISH) or {}

    def run(self, backend: Json | None) -> Published:
        if backend is not None:
            self._name(backend)
        edited = [int(each) for each in self._state.get(EDITED_TASKS, [])]
        same = self._state.get("version") == self._version
        go_on = same and not edited
        after = int(self._state.get("after", 0)) if go_on else 0
        seen = int(self._state.get("seen", 0)) if go_on and after else 0  # by the run that this one goes on with
        self._tell("predictions", seen)
        for page, ready in self._ahead(after, edited):
            self._refresh(page, edited, ready)
            seen += len(page)
            self._keep({"version": self._version, "after": int(page[-1]["id"]), "seen": seen})
            self._tell("predictions", seen)
        any_has_it = self._bulk is not None and self._sweep()
        self._fresh.close()
        self._report.reused = self._fresh.reused
        if backend is not None or any_has_it:  # a version that nothing goes by is refused
            self._set_version()
        self._keep_tabs()
        self._finish(edited)
        self._report.seconds = {name: round(took, 2) for name, took in self._watch.seconds.items()}
        return self._report

    def _pages(self, after: int = 0) -> Iterator[Page]:
        unlabelled = [where("total_annotations", "equal", 0)]
        size = PAGE if self._bulk is None else self._bulk.page
        pages = self._client.tasks_after(self._number, after=after, filters=unlabelled, size=size)
        while True:
            with self._watch.measure("server: reading"):
                page = next(pages, None)
            if page is None:
                return
            yield page

    def _ahead(self, after: int, edited: Sequence[int]) -> Iterator[tuple[Page, Ready]]:
        if self._bulk is None:
            return ((page, {}) for page in self._pages(after))
        return self._bulk.ahead(self._fresh, ((page, self._wanted(page, edited)) for page in self._pages(after)))

    def _tell(self, stage: str, done: int) -> None:
        labelled = self._remote.get("num_tasks_with_annotations") or 0
        total = self._remote.get("task_number")
        total = None if total is None else max(done, total - labelled)
        note = f"{stage}: {self._report.refreshed} refreshed, {self._report.removed} removed"
        self._context.heartbeat(done=done, total=total, note=note)
        if self._bulk is not None:
            self._bulk.progress(stage, done, total)

    def _sweep(self) -> bool:
        """Look at every task once more: add what is lacking, remove what is there twice; say whether any has it.

        Label Studio may store what it fetched itself at any time, and a request whose sender was killed still counts:
        only the server knows what is there. While others add predictions meanwhile, the look is repeated.
        """
        any_has_it = False
        for _ in range(MOST_SWEEPS):
            begun, removed = self._predictions(), self._report.removed
            added = seen = 0
            self._report.lacking = []
            for page in self._pages():
                at_work = self._at_work(page)
                free = [task for task in page if int(task["id"]) not in at_work]
                for task in free:
                    self._remove(doubled(task, self._version))
                lacking = [task for task in free if not has_version(task, self._version)]
                any_has_it = any_has_it or any(has_version(task, self._version) for task in page)
                if lacking:
                    added += self._add(lacking, {})
                    any_has_it = any_has_it or added > 0
                seen += len(page)
                self._tell("check", seen)
            expected = begun + added - (self._report.removed - removed)
            if self._predictions() == expected:
                break
        self._report.refused = len(self._report.lacking)
        self._report.lacking = self._report.lacking[:MOST_NAMED]
        return any_has_it

    def _predictions(self) -> int:
        return int(self._client.project(self._number)["total_predictions_number"])

    def _wanted(self, page: Sequence[Json], edited: Sequence[int]) -> Page:
        return [task for task in page if not has_version(task, self._version) or made_for_other_text(task, edited)]

    def _name(self, backend: Json) -> None:
        if backend["title"] != self._version:
            self._client.update_backend(
                int(backend["id"]),
                project=self._number,
                url=str(backend["url"]),
                title=self._version,
                auth=credentials(self._context.settings),
            )
            self._report.changes.append(f"named the backend {self._version}")
        self._set_version()

    def _set_version(self) -> None:
        """Set the project's version: renaming may have done so, removing a version undoes it."""
        now = self._client.project(self._number)
        if now["model_version"] != self._version:
            self._client.update_project(self._number, model_version=self._version)
            self._report.changes.append(f"set the project's model version to {self._version}")

    def _refresh(self, page: Sequence[Json], edited: Sequence[int], ready: Ready) -> None:
        report = self._report
        report.looked_at += len(page)
        at_work = self._at_work(page)
        wanted = self._wanted(page, edited)
        free = [task for task in wanted if int(task["id"]) not in at_work]
        report.at_work += len(wanted) - len(free)
        self._postponed |= at_work & set(edited)
        if free:
            self._add(free, ready, edited)
            for task in free:
                # Their words stand elsewhere in the text now, or nowhere: nobody is helped by keeping them.
                self._remove(made_for_other_text(task, edited))
        before = datetime.now(UTC) - self._patience
        for task in page:
            if int(task["id"]) not in at_work:
                self._remove(doubled(task, self._version))
            if int(task["id"]) in at_work or not has_superseded(task, self._version):
                report.stale += has_superseded(task, self._version)
                continue
            old = superseded(task, self._version, before=before)
            if old and report.removed + len(old) <= MOST_REMOVED:
                self._remove(old)
            else:
                report.stale += 1

    @property
    def _patience(self) -> timedelta:
        return timedelta(minutes=self._context.settings.at_work_minutes)

    def _at_work(self, page: Sequence[Json]) -> set[int]:
        numbers = [str(task["id"]) for task in page]
        since = datetime.now(UTC) - self._patience
        with self._context.store.read() as session:
            opened = opened_since(session, self._project.id, tasks=numbers, since=since)
        return {
            int(task["id"])
            for task in page
            # Who opened a task has a prediction of ours in view; where none is there, nobody has.
            if task["draft_exists"] or (str(task["id"]) in opened and has_ours(task))
        }

    def _add(self, tasks: Sequence[Json], ready: Ready, edited: Sequence[int] = ()) -> int:
        """Give tasks those predictions that they do not have; returns how many the server took.

        An earlier run may have been cut off between two of a task's. What an edited one has is of another text.
        """
        with self._watch.measure("sets and record"):
            entries = self._fresh.of(tasks, ready)
        items = [item for task, entry in zip(tasks, entries, strict=True) for item in as_items(int(task["id"]), entry)]
        present = {int(task["id"]): _versions(task) for task in tasks if int(task["id"]) not in edited}
        items = [item for item in items if item["model_version"] not in present.get(item["task"], ())]
        created = self._import(items)
        if self._bulk is not None and created == len(items):
            self._report.refreshed += len(tasks)  # the sweep looks at them again
            return created
        there = self._pick(tasks)
        lost = [
            item
            for task in there
            for item in items
            if item["task"] == int(task["id"]) and item["model_version"] not in _versions(task)
        ]
        if lost:
            created += self._import(lost)
            there = self._pick(tasks)
        for task in there:
            self._remove(doubled(task, self._version))
        lacking = [int(task["id"]) for task in there if not has_version(task, self._version)]
        if lost:
            self._context.log.warning(
                "Label Studio did not take all predictions",
                extra={"project": self._project.uid, "sent": len(items), "taken": created, "tasks": len(lacking)},
            )
        self._report.refused += len(lacking)
        self._report.lacking += lacking
        self._report.refreshed += len(there) - len(lacking)
        return created

    def _import(self, items: Sequence[Json]) -> int:
        with self._watch.measure("server: writing"):
            try:
                return self._client.import_predictions(self._number, items)
            except LabelStudioError as error:
                if error.status != 400:
                    raise
            # One task that was deleted meanwhile, and the server takes none of them.
            numbers = sorted({int(item["task"]) for item in items})
            there = {int(task["id"]) for task in self._pick([{"id": number} for number in numbers])}
            left = [item for item in items if item["task"] in there]
            return self._client.import_predictions(self._number, left) if left else 0

    def _pick(self, tasks: Sequence[Json]) -> list[Json]:
        numbers = [int(task["id"]) for task in tasks]
        with self._watch.measure("server: reading"):
            parts = [
                self._client.pick_tasks(self._number, numbers[first : first + PICKED])
                for first in range(0, len(numbers), PICKED)
            ]
        return [task for part in parts for task in part]

    def _remove(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            try:
                self._client.delete_prediction(number)
            except LabelStudioError as error:
                if error.status != 404:  # somebody was faster
                    raise
            self._report.removed += 1
            if self._report.removed % 50 == 0:
                self._context.heartbeat()

    def _keep_tabs(self) -> None:
        """Keep the tab of blind tasks up to date, and add the review tab when the order has become review."""
        with self._context.store.read() as session:
            connection = get_state(session, self._project.id, CONNECTION) or {}  # as it is by now
            blind = sorted(int(each) for each in blind_tasks(session, self._project.id, limit=MOST_BLIND))
        if not connection.get("backend"):
            return
        before: dict[str, int] = dict(connection.get("views") or {})
        known = dict(before)
        there = {each["id"]: each for each in self._client.views(self._number)}
        wanted = tabs_for(str(self._remote["sampling"]))
        tab = blind_tab(blind)
        if blind and known.get(BLIND_AUDIT) not in there:
            known[BLIND_AUDIT] = int(self._client.create_view(self._number, tab)["id"])
        for name, fresh in ((BLIND_AUDIT, tab), (EVIDENCE_FIRST, evidence_tab(blind))):
            if blind and known.get(name) in there and there[known[name]]["data"].get("filters") != fresh["filters"]:
                self._client.update_view(known[name], project=self._number, data=fresh)
        if REVIEW_FIRST in wanted and known.get(REVIEW_FIRST) not in there:
            known[REVIEW_FIRST] = int(self._client.create_view(self._number, wanted[REVIEW_FIRST])["id"])

        added = {name: number for name, number in known.items() if before.get(name) != number}

        def views(value: Json) -> Json:
            return value | {"views": (value.get("views") or {}) | added} if value.get("backend") else value

        if added and not self._context.store.run(
            lambda session: update_state(session, self._project.id, CONNECTION, views)
        ).get("backend"):
            for number in added.values():  # disconnected meanwhile: nobody else knows of these
                self._client.delete_view(number)

    def _finish(self, edited: Sequence[int]) -> None:
        now = datetime.now(UTC)
        # What is left now (a task someone has open, predictions someone may have open) can be done then. So can what
        # Label Studio itself was fetching while we stored the same: it stores that whenever it comes.
        settled = self._report.agrees and (not self._report.refreshed or self._bulk is not None)
        again = None if settled else (now + max(self._patience, timedelta(minutes=1))).isoformat()
        last = self._report.as_dict() | {"finished_at": now.isoformat()}

        def finished(value: Json) -> Json:
            left = sorted((set(value.get(EDITED_TASKS, [])) - set(edited)) | self._postponed)
            return value | {"after": 0, "seen": 0, "again_at": again, "last": last, EDITED_TASKS: left}

        self._context.store.run(lambda session: update_state(session, self._project.id, PUBLISH, finished))

    def _keep(self, progress: Json) -> None:
        def work(session: Session) -> None:
            update_state(session, self._project.id, PUBLISH, lambda value: value | progress)

        self._context.store.run(work)


def _versions(task: Json) -> set[str]:
    return {str(each["model_version"]) for each in task["predictions"]}
