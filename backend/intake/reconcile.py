"""The reconciliation itself: a cursor by the time of change, saved with every page, so that a killed one goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from backend.calibration.order import record_sampling
from backend.domain.records import JobRecord, ProjectRecord
from backend.domain.target import TextTag
from backend.errors import InvalidLabelConfig, LabelStudioError
from backend.intake.differences import Counts, Differences, Frame, compare, keys_of
from backend.intake.webhook import keep_switched_on
from backend.jobs.context import WorkContext
from backend.jobs.kinds import queue_publish
from backend.labelstudio.annotations import control_of
from backend.labelstudio.client import PICKED, Json, LabelStudio, project_uid
from backend.labelstudio.config import parse_config
from backend.labelstudio.payloads import read_moment
from backend.settings import Settings
from backend.store import Store
from backend.store.events import append_events
from backend.store.projects import ensure_project
from backend.store.reconcile import (
    KnownTask,
    known_annotations,
    known_tasks,
    living_annotations,
    tasks_from,
    waiting_events,
)
from backend.store.state import EDITED_TASKS, PUBLISH, SYNC, get_state, update_state

# A change gets its time before it can be seen, so what was changed just before the cursor may only be seen now.
OVERLAP = timedelta(minutes=2)
SCAN_EVERY = timedelta(hours=1)
BEGINNING = datetime(2000, 1, 1, tzinfo=UTC)

Progress = Callable[[Counts], None]


@dataclass
class Synced:
    """What a reconciliation found, and how long it took."""

    project: str
    counts: Counts = field(default_factory=Counts)
    scanned: bool = False
    seconds: float = 0.0

    @property
    def brought_in(self) -> int:
        """Annotations that the store did not have, or not in this state."""
        return self.counts.brought_in

    def as_dict(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "project": self.project,
            **vars(self.counts),
            "scanned": self.scanned,
            "seconds": round(self.seconds, 2),
        }


def run_sync(context: WorkContext, job: JobRecord) -> dict[str, Any]:
    """Reconcile the project of a job; does nothing, and says so, where no server is set."""
    client = context.label_studio()
    if client is None:
        return {"skipped": "LABEL_STUDIO_URL and LABEL_STUDIO_API_KEY are not set"}
    project = context.project_of(job)
    if not project.key.isdigit():
        return {"skipped": "not a project of Label Studio"}
    header = context.views.base_of(project).header()

    def report(counts: Counts) -> None:
        context.heartbeat(done=counts.looked_at, note=f"{counts.brought_in} brought in, {counts.deleted} deleted")

    with client:
        switched_on = keep_switched_on(context.store, client, project)
        synced = sync_project(
            context.store,
            client,
            project,
            settings=context.settings,
            classes=header.classes,
            full=bool(job.payload.get("full")),
            progress=report,
        )
    return synced.as_dict() | {"webhook_switched_on": switched_on}


def sync_project(
    store: Store,
    client: LabelStudio,
    project: ProjectRecord,
    *,
    settings: Settings,
    classes: tuple[str, ...] = (),
    full: bool = False,
    progress: Progress = lambda counts: None,  # noqa: ARG005 - nobody listens
) -> Synced:
    """Bring the inbox up to what the server has.

    Args:
        classes: of the model; they decide which control of the label config is ours.
        full: begin at the beginning, compare all numbers whether or not it is time, and try again what was set aside
            because it could not be processed.

    Raises:
        LabelStudioError: when the server cannot be asked; what was found until then is kept, and the next one goes on
            from there. The error is kept too, for those who look.
    """
    begun = time.monotonic()
    synced = Synced(project.uid)
    try:
        _Reconciliation(store, client, project, settings, classes, synced, progress).run(full=full)
    except LabelStudioError as error:
        text = str(error)
        store.run(lambda session: update_state(session, project.id, SYNC, lambda value: value | {"error": text}))
        raise
    synced.seconds = time.monotonic() - begun
    counts, now = vars(synced.counts), datetime.now(UTC).isoformat()

    def finished(value: Json) -> Json:
        total = {name: int((value.get("total") or {}).get(name, 0)) + count for name, count in counts.items()}
        runs = int(value.get("runs", 0)) + 1
        last = synced.as_dict() | {"finished_at": now}
        return value | {"last": last, "total": total, "runs": runs, "error": None}

    store.run(lambda session: update_state(session, project.id, SYNC, finished))
    return synced


class _Reconciliation:
    def __init__(
        self,
        store: Store,
        client: LabelStudio,
        project: ProjectRecord,
        settings: Settings,
        classes: tuple[str, ...],
        synced: Synced,
        progress: Progress,
    ) -> None:
        self._store, self._client, self._project = store, client, project
        self._settings, self._classes = settings, classes
        self._synced, self._progress = synced, progress
        self._number = int(project.key)
        self._retry = False

    def run(self, *, full: bool) -> None:
        self._retry = full
        remote = self._client.project(self._number)
        if project_uid(remote) != self._project.uid:
            raise LabelStudioError(
                f"expected project {self._number} of {self._client.url} to be {self._project.uid}, got "
                f"{project_uid(remote)}: this database belongs to another server, or the project was recreated",
                status=None,
                asked=f"GET /api/projects/{self._number}/",
            )
        # By the server's clock, because it is compared with the server's times.
        at = self._client.http.server_time or datetime.now(UTC)
        frame = Frame(remote, at, _text_tag(str(remote["label_config"]), self._classes, self._settings.labels_control))
        state = self._store.run(lambda session: self._note(session, remote, at))
        cursor = None if full or "cursor" not in state else read_moment(state["cursor"])
        since = BEGINNING if cursor is None else cursor - OVERLAP
        cap: datetime | None = None
        for page in self._client.changed_since(self._number, since=since):
            differences = self._take(page, frame)
            if differences.unsettled is not None:
                cap = differences.unsettled if cap is None else min(cap, differences.unsettled)
            reached = read_moment(page[-1]["updated_at"])
            self._save(differences, cursor=reached if cap is None else min(cap, reached))
        if full or self._is_time(state, remote, at):
            self._scan(frame, after=0 if full else int((state.get("scan") or {}).get("after", 0)), since=since)
            number, scanned = remote.get("task_number"), at.isoformat()
            done = {"scan": {"at": scanned, "tasks": number, "after": 0}}
            self._store.run(lambda session: update_state(session, self._project.id, SYNC, lambda value: value | done))
            self._synced.scanned = True

    def _note(self, session: Session, remote: Json, at: datetime) -> Json:
        ensure_project(session, self._project.uid, title=remote["title"], label_config=remote["label_config"])
        record_sampling(session, self._project.id, sampling=remote["sampling"], at=at, source="sync")
        return get_state(session, self._project.id, SYNC) or {}

    def _take(self, page: Sequence[Json], frame: Frame) -> Differences:
        numbers = [str(task["id"]) for task in page]
        held = [int(each["id"]) for task in page for each in task["annotations"]]
        with self._store.read() as session:
            living = living_annotations(session, self._project.id, numbers)
            keys = [*keys_of(page), *(f"a{each.annotation_id}" for each in living)]
            waiting = waiting_events(session, self._project.key, keys)
            return compare(
                page,
                frame,
                annotations=known_annotations(session, self._project.id, held),
                living=living,
                known=known_tasks(session, self._project.id, numbers),
                waiting=replace(waiting, set_aside=frozenset()) if self._retry else waiting,
            )

    def _save(self, differences: Differences, *, cursor: datetime | None = None, after: int | None = None) -> None:
        """Put the events of a page into the inbox together with how far we are: both, or neither."""

        def progress(value: Json) -> Json:
            changed = dict(value)
            if cursor is not None:
                changed["cursor"] = cursor.isoformat()
            if after is not None:
                changed["scan"] = dict(changed.get("scan") or {}) | {"after": after}
            return changed

        def work(session: Session) -> None:
            if differences.events:
                append_events(session, differences.events)
            if differences.edited:
                self._refresh(session, differences.edited)
            update_state(session, self._project.id, SYNC, progress)

        self._store.run(work)
        self._synced.counts.add(differences.counts)
        self._progress(self._synced.counts)

    def _refresh(self, session: Session, edited: Sequence[int]) -> None:
        def more(value: Json) -> Json:
            return value | {EDITED_TASKS: sorted({*value.get(EDITED_TASKS, []), *edited})}

        update_state(session, self._project.id, PUBLISH, more)
        queue_publish(session, self._project)

    def _is_time(self, state: Json, remote: Json, at: datetime) -> bool:
        scan = state.get("scan") or {}
        if "at" not in scan or at - read_moment(scan["at"]) >= SCAN_EVERY or scan.get("after"):
            return True
        before, now = scan.get("tasks"), remote.get("task_number")
        return isinstance(before, int) and isinstance(now, int) and now < before

    def _scan(self, frame: Frame, *, after: int, since: datetime) -> None:
        """Compare all numbers: tasks that are gone, and tasks whose annotations are not as many as ours.

        Tasks that changed since `since` have been looked at already.
        """
        while True:
            with self._store.read() as session:
                known = tasks_from(session, self._project.id, after=after, limit=PICKED)
            if not known:
                return
            after = known[-1].id
            there = self._client.pick_tasks(
                self._number,
                sorted({int(each.external_id) for each in known if each.external_id.isdigit()}),
                whole=False,
            )
            self._save(self._gone(known, {str(task["id"]) for task in there}, frame), after=after)
            odd = self._odd([task for task in there if read_moment(task["updated_at"]) < since])
            if odd:
                self._save(self._take(self._client.pick_tasks(self._number, odd), frame))

    def _gone(self, known: Sequence[KnownTask], there: set[str], frame: Frame) -> Differences:
        differences = Differences()
        gone = sorted(
            {
                each.external_id
                for each in known
                if each.external_id.isdigit()
                and each.external_id not in there
                and (each.created_at is None or each.created_at < frame.at)
            }
        )
        with self._store.read() as session:
            waiting = waiting_events(session, self._project.key, [f"t{number}" for number in gone])
        for number in gone:
            if waiting.covers(f"t{number}"):
                differences.counts.waiting += 1
                continue
            differences.events.append(frame.event("TASKS_DELETED", tasks=[{"id": int(number)}]))
            differences.counts.deleted_tasks += 1
        return differences

    def _odd(self, there: Sequence[Json]) -> list[int]:
        with self._store.read() as session:
            living = living_annotations(session, self._project.id, [str(task["id"]) for task in there])
        ours: dict[str, int] = {}
        for each in living:
            ours[each.task or ""] = ours.get(each.task or "", 0) + 1
        return [
            int(task["id"])
            for task in there
            if int(task["total_annotations"]) + int(task["cancelled_annotations"]) != ours.get(str(task["id"]), 0)
        ]


def _text_tag(label_config: str, classes: tuple[str, ...], control: str | None) -> TextTag | None:
    try:
        config = parse_config(label_config)
    except InvalidLabelConfig:
        return None
    try:
        target = config.target(classes, control=control)
    except InvalidLabelConfig:
        target = None
    name = control_of(config, target, named=control)
    return next((each.text for each in config.controls if each.name == name), None)
