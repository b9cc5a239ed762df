"""A connected project: whether it is still wired as `surespan connect` left it, and what that means for its sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from backend.doctor.findings import Finding, State, fail, listed, ok, skipped, warn
from backend.domain.project_model import ProjectModel
from backend.domain.records import AlarmRecord, ProjectRecord
from backend.domain.streams import Order, order_of
from backend.domain.target import Target
from backend.errors import BackendError, InvalidLabelConfig, LabelStudioError
from backend.intake.ingest import ACTIONS
from backend.labelstudio.client import Json, LabelStudio, project_uid
from backend.labelstudio.config import parse_config
from backend.labelstudio.payloads import SECRET_HEADER
from backend.labelstudio.versions import base_version
from backend.models.loading import ModelLoader
from backend.models.stored import StoredModels
from backend.models.views import Views
from backend.monitoring.alarms import ADVICE
from backend.prediction.remarks import describe_unknown, teach_labels
from backend.settings import Settings
from backend.store import Store
from backend.store.monitor import list_alarms
from backend.store.project_models import serving_model
from backend.store.projects import find_project
from backend.store.sampling import current_order
from backend.store.state import CONNECTION, PUBLISH, SYNC, get_state
from backend.tagger.errors import TaggerError

CONNECTED = "CO"
_NEEDED = frozenset(ACTIONS) - {"START_TRAINING"}


@dataclass(frozen=True)
class Local:
    """What our own database knows of a project."""

    record: ProjectRecord | None = None
    connection: Json | None = None
    sync: Json | None = None
    publish: Json | None = None
    order: Order | None = None
    alarms: tuple[AlarmRecord, ...] = ()
    own: ProjectModel | None = None


def read_local(store: Store | None, number: int) -> Local:
    """Return what the database knows of a project."""
    if store is None:
        return Local()
    with store.read() as session:
        record = find_project(session, str(number))
        if record is None:
            return Local()
        connection, sync, publish = (get_state(session, record.id, name) for name in (CONNECTION, SYNC, PUBLISH))
        standing = tuple(each for each in list_alarms(session, record.id) if each.acknowledged_at is None)
        own = serving_model(session, record.id)
        return Local(record, connection, sync, publish, current_order(session, record.id), standing, own)


class ProjectChecks:
    """The checks of one project: `run` makes its findings, whatever of Label Studio and database there is."""

    def __init__(
        self,
        number: int,
        settings: Settings,
        *,
        client: LabelStudio | None,
        store: Store | None,
        classes: tuple[str, ...] | None,
    ) -> None:
        self._number, self._settings, self._client, self._store = number, settings, client, store
        self.local = read_local(store, number)
        self._classes = classes if self.local.own is None else self.local.own.classes

    def run(self) -> Iterator[Finding]:
        """Yield the findings."""
        yield from self._remote()
        yield from self._own_model()
        yield from self._kept()

    def _remote(self) -> Iterator[Finding]:
        number = self._number
        if self._client is None:
            why = "Label Studio cannot be asked"
            for check in ("project", "labels", "flags", "backend", "version", "webhook", "sampling", "prelabels"):
                yield skipped(check, why, "set LABEL_STUDIO_URL and LABEL_STUDIO_API_KEY", project=number)
            return
        try:
            remote = self._client.project(number)
            backends, hooks = self._client.backends(number), self._client.webhooks(number)
        except LabelStudioError as error:
            yield fail("project", str(error), "check the number, and that the token's user sees it", project=number)
            return
        yield self._project(remote)
        yield from self._labels(str(remote["label_config"]))
        backend = self._ours(backends)
        yield from self._backend(backend, backends)
        yield self._version(remote, backend)
        yield self._webhook(hooks, backend)
        yield self._sampling(str(remote["sampling"]))
        yield self._prelabels(remote)

    def _project(self, remote: Json) -> Finding:
        number, record, connection = self._number, self.local.record, self.local.connection or {}
        if self._store is None:
            return skipped("project", "the database cannot be used", project=number)
        if record is None or not connection.get("backend"):
            remedy = f"run `surespan connect --project {number}`"
            return fail("project", "not connected to this database", remedy, project=number)
        if record.uid != project_uid(remote):
            return fail(
                "project",
                f"the database knows it as {record.uid}, Label Studio as {project_uid(remote)}: it was recreated, or "
                "the database belongs to another Label Studio",
                f"use the database of this Label Studio, or run `surespan connect --project {number}`",
                project=number,
            )
        return ok("project", f"“{remote['title']}” is connected ({record.uid})", project=number)

    def _labels(self, config: str) -> Iterator[Finding]:
        number, classes = self._number, self._classes
        if classes is None:
            yield skipped("labels", "the classes of the model are not known", project=number)
            yield skipped("flags", "the classes of the model are not known", project=number)
            return
        try:
            target = parse_config(config).target(classes, control=self._settings.labels_control)
        except InvalidLabelConfig as error:
            remedy = "give the project a Labels control over its text"
            yield fail("labels", str(error), remedy, project=number)
            yield skipped("flags", "nothing can be predicted", project=number)
            return
        yield self._mapping(target, classes)
        if target.flag is None:
            remedy = f"run `surespan connect --project {number}`, which offers to add the control"
            yield warn("flags", "the label config has no control that marks doubtful spans", remedy, project=number)
        else:
            yield ok("flags", f"doubtful spans are marked “{target.flag.value}”", project=number)

    def _mapping(self, target: Target, classes: Sequence[str]) -> Finding:
        if target.blank:
            said = describe_unknown(target.unknown, blank=True)
            return warn("labels", said, teach_labels(self._number), project=self._number)
        shown = ", ".join(f"{name} → {label}" for name, label in target.labels.items())
        folded = [name for name in classes if name not in target.labels]
        said = shown + (f"; folded into O: {listed(folded)}" if folded else "")
        if not target.unknown:
            return ok("labels", said, project=self._number)
        return warn(
            "labels",
            f"{said}; no class of the model maps to: {listed(target.unknown)}",
            "texts with such a label are beyond every set: name a class in predicted_values of the label, train a "
            "model that knows it (`surespan train`), or leave it if it is rare",
            project=self._number,
        )

    def _own_model(self) -> Iterator[Finding]:
        own, number = self.local.own, self._number
        if own is None or self._store is None:
            return
        try:
            StoredModels(self._store, self._settings.models_directory).fetch(own.model_hash)
        except (TaggerError, OSError) as error:
            remedy = f"go back to another (`surespan models --project {number} --promote HASH`), or train again"
            yield fail("own-model", f"{own.version} is to serve and cannot be had: {error}", remedy, project=number)
            return
        yield ok(
            "own-model", f"{own.version} serves, trained on {own.labels:,} labels; its file is whole", project=number
        )

    def _ours(self, backends: Sequence[Json]) -> Json | None:
        known = (self.local.connection or {}).get("backend")
        mine = [each for each in backends if each["id"] == known]
        answering = [each for each in backends if base_version(each["model_version"]) is not None]
        return next(iter(mine or answering), None)

    def _backend(self, backend: Json | None, backends: Sequence[Json]) -> Iterator[Finding]:
        number = self._number
        again = f"run `surespan connect --project {number}`"
        if backend is None:
            yield fail("backend", "the project has no Surespan backend", again, project=number)
            return
        others = [str(each["title"]) for each in backends if each["id"] != backend["id"]]
        if others:
            yield warn(
                "backend",
                f"the project has other backends too, and Label Studio calls one of them: {listed(others)}",
                "in the project's settings, under Model, remove those that are not needed",
                project=number,
            )
        if backend["state"] != CONNECTED:
            reason = " ".join(str(backend.get("error_message") or "no reason given").split())[:200]
            yield fail(
                "backend",
                f"Label Studio cannot use {backend['url']}: {reason}",
                "start `surespan serve`; if it runs, Label Studio's machine must reach that address (not localhost "
                f"inside a container) with the credentials it was given: {again} with --backend-url",
                project=number,
            )
            return
        yield ok("backend", f"Label Studio reaches {backend['url']}", project=number)

    def _version(self, remote: Json, backend: Json | None) -> Finding:
        number = self._number
        if backend is None:
            return skipped("version", "there is no Surespan backend", project=number)
        wanted = self._expected(str(remote["label_config"]))
        answered, title, used = (
            str(each or "") for each in (backend["model_version"], backend["title"], remote["model_version"])
        )
        serves = wanted or answered
        if wanted is not None and backend["state"] == CONNECTED and answered != wanted:
            return warn(
                "version",
                f"the service answers {answered or 'no version'}, and these settings and this database say {wanted}",
                "give the service and this command the same environment; after a refit wait a few seconds",
                project=number,
            )
        wrong = [
            f"{what} is {value or 'empty'}"
            for what, value in (("the backend's title", title), ("the project's model version", used))
            if value != serves
        ]
        if wrong:
            return fail(
                "version",
                f"{serves} serves, but {' and '.join(wrong)}: scores, order of work and prelabels depend on that name",
                f"run `surespan connect --project {number}`; after a refit the worker does this by itself",
                project=number,
            )
        return ok("version", f"title, model version and answers agree: {serves}", project=number)

    def _expected(self, config: str) -> str | None:
        """Return the version that serves according to database and settings; None when that cannot be known."""
        record = self.local.record
        if self._store is None or record is None:
            return None
        try:
            return Views(self._settings, self._store, ModelLoader(self._settings)).model_version(record.uid, config)
        except BackendError:
            return None

    def _webhook(self, hooks: Sequence[Json], backend: Json | None) -> Finding:
        number = self._number
        base = str((backend or {}).get("url") or (self.local.connection or {}).get("backend_url") or "")
        if not base:
            return skipped("webhook", "there is no Surespan backend", project=number)
        address = base.rstrip("/") + "/webhook"
        again = (
            f"run `surespan connect --project {number}`, which corrects it; `surespan sync` brings in what was missed"
        )
        mine = [each for each in hooks if str(each["url"]).rstrip("/") == address]
        if not mine:
            return fail(
                "webhook",
                f"no webhook to {address}: submitted labels come in only by reconciliation",
                again,
                project=number,
            )
        wrong = [problem for each in mine[:1] for problem in self._faults(each)]
        if wrong:
            return fail("webhook", f"the webhook to {address} {' and '.join(wrong)}", again, project=number)
        if len(mine) > 1:
            return warn("webhook", f"{len(mine)} webhooks to {address}: events arrive twice", again, project=number)
        return ok("webhook", f"events go to {address}, all of them, with the right header", project=number)

    def _faults(self, hook: Json) -> Iterator[str]:
        if not hook["is_active"]:
            yield "is switched off"
        if not hook["send_payload"]:
            yield "sends no payload"
        if not hook["send_for_all_actions"] and not _NEEDED.issubset(hook["actions"]):
            yield f"does not send {listed(sorted(_NEEDED - set(hook['actions'])))}"
        secret = self._settings.webhook_secret
        given = {str(key).lower(): value for key, value in (hook["headers"] or {}).items()}.get(SECRET_HEADER.lower())
        if secret is not None and given is None:
            yield f"lacks the header {SECRET_HEADER}"
        elif secret is not None and given != secret.get_secret_value():
            yield f"has another {SECRET_HEADER} than SURESPAN_WEBHOOK_SECRET"

    def _sampling(self, sampling: str) -> Finding:
        number, order = self._number, order_of(sampling)
        known = self.local.order
        if known is Order.SHUFFLED and order is Order.SEQUENTIAL:
            return ok(
                "sampling",
                f"{sampling}, of a collection declared to be in random order: labels calibrate",
                project=number,
            )
        if order is Order.UNIFORM:
            return ok("sampling", f"{sampling}: tasks are given out at random, so labels calibrate", project=number)
        if order is Order.REVIEW:
            return warn(
                "sampling",
                f"{sampling}: the model's doubt decides the order, so only blind audit tasks calibrate (share "
                f"{self._settings.audit_share:g})",
                "fine for review; for quick calibration choose uniform sampling: "
                f"`surespan connect --project {number} --sampling uniform`",
                project=number,
            )
        return warn(
            "sampling",
            f"{sampling}: tasks are given out in the order of import, so labels do not calibrate",
            f"`surespan connect --project {number} --sampling uniform`, or --shuffled if the collection is in random "
            "order",
            project=number,
        )

    def _prelabels(self, remote: Json) -> Finding:
        if remote.get("show_collab_predictions"):
            return ok("prelabels", "annotators see the best labeling", project=self._number)
        return warn(
            "prelabels",
            "the project does not show predictions to annotators",
            f"run `surespan connect --project {self._number}`, or turn on prelabeling in the project's settings",
            project=self._number,
        )

    def _kept(self) -> Iterator[Finding]:
        """Yield what our own database says of the project."""
        number, local = self._number, self.local
        if local.record is None:
            return
        yield self._synced(local.sync or {}, local.publish or {})
        if not local.alarms:
            yield ok("alarms", "no active alarms", project=number)
            return

        for alarm in local.alarms:
            advice = ADVICE.get(alarm.kind, "look at the dashboard")
            yield Finding(
                "alarms",
                State.WARN,
                f"{alarm.kind}: {alarm.message.removesuffix(advice).strip()}",
                advice,
                number,
                anchor=f"alarm-{alarm.kind}" if alarm.kind in ADVICE else None,
            )

    def _synced(self, sync: dict[str, Any], publish: dict[str, Any]) -> Finding:
        number = self._number
        if sync.get("error"):
            return fail(
                "sync",
                f"reconciliation failed: {sync['error']}",
                "see `label-studio`, `token` and `address`",
                project=number,
            )
        last, published = sync.get("last"), publish.get("last")
        if last is None:
            remedy = f"run `surespan sync --project {number}`, and keep a worker running"
            return warn("sync", "never reconciled with Label Studio", remedy, project=number)
        said = f"last reconciled {str(last.get('finished_at', '?'))[:16].replace('T', ' ')} UTC"
        if published is not None and not published.get("agrees"):
            later = f"{published.get('at_work', 0)} tasks are in use, {published.get('stale', 0)} are waiting"
            return ok("sync", f"{said}; predictions are being refreshed: {later}", project=number)
        return ok("sync", said, project=number)
