"""The jobs of acceptance: decide and accept, and take back. Each may be killed at any moment and begins again."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from backend.acceptance.decision import Standing, Wish, decide
from backend.acceptance.evidence import equal_labels
from backend.acceptance.report import describe_decision
from backend.acceptance.sending import Sender, keep_tabs, plan
from backend.acceptance.withdrawal import withdraw
from backend.documents.document import PlainText
from backend.domain.records import AcceptanceRecord, JobRecord, ModelRecord, ProjectRecord
from backend.domain.streams import Order
from backend.errors import LabelStudioError, StoreConflict
from backend.jobs.context import WorkContext
from backend.labelstudio.client import LabelStudio, project_uid
from backend.models.views import View, Views
from backend.publish import publish_project
from backend.publish.fresh import FreshPredictions
from backend.store.acceptance import BlindLabel, count_accepted, forget_plan, list_acceptances
from backend.store.monitor import DRIFT, list_alarms
from backend.store.projects import ensure_model
from backend.store.sampling import current_order
from backend.store.thresholds import active_version
from conformal.errors import InvalidArgument
from conformal.risk.acceptance import Promise

MOST_ROUNDS = 3  # while new versions come
REFUSED = 403


class Refused(StoreConflict):
    """Acceptance cannot be done, and trying again changes nothing."""


def run_accept(context: WorkContext, job: JobRecord) -> dict[str, Any]:
    """Do a job of kind `accept`: bring every task up to date, make the decision that is due, and act on it.

    What cannot be done is said in the result under `refused`.

    Raises:
        LabelStudioError: when the server cannot be asked; the job is tried again.
    """
    client = context.label_studio()
    if client is None:
        return {"refused": "LABEL_STUDIO_URL and LABEL_STUDIO_API_KEY are not set"}
    project = context.project_of(job)
    try:
        wish = Wish(str(job.payload.get("max_error", "")), Promise(str(job.payload.get("promise", ""))))
        with client:
            return _Acceptance(context, client, project, wish, who=str(job.payload.get("who", ""))).run(
                dry=bool(job.payload.get("dry_run"))
            )
    except (Refused, InvalidArgument, ValueError) as error:
        return {"refused": str(error)}


def run_withdraw(context: WorkContext, job: JobRecord) -> dict[str, Any]:
    """Do a job of kind `withdraw`."""
    client = context.label_studio()
    if client is None:
        return {"refused": "LABEL_STUDIO_URL and LABEL_STUDIO_API_KEY are not set"}
    project = context.project_of(job)
    with client:
        done = withdraw(context, client, project, why=str(job.payload.get("reason", "asked for")))
    return vars(done)


class _Acceptance:
    def __init__(
        self, context: WorkContext, client: LabelStudio, project: ProjectRecord, wish: Wish, *, who: str
    ) -> None:
        self._context, self._client, self._project = context, client, project
        self._wish, self._who = wish, who

    def run(self, *, dry: bool) -> dict[str, Any]:
        self._check()
        if publish_project(self._context, self._client, self._project) is None:
            raise Refused("expected a project that is connected, got one without a Surespan backend")
        keep_tabs(self._context, self._client, self._project, account=int(self._client.whoami()["id"]))
        view, model, version = self._now()
        self._predict_labelled(view, model)
        standing = self._decide(view, model, version)
        result: dict[str, Any] = {"standing": standing.missing, "decision": None}
        decision = standing.decision
        if decision is None:
            return result
        result["decision"] = describe_decision(decision)
        if dry or decision.level is None:
            return result
        if decision.withdrawn_at is not None:
            raise Refused(f"decision {decision.number} was withdrawn ({decision.withdrawn_why}): {standing.missing}")
        return result | self._act(decision, model)

    def _check(self) -> None:
        if not self._project.key.isdigit():
            raise Refused("expected a project of Label Studio, got another")
        remote = self._client.project(int(self._project.key))
        if project_uid(remote) != self._project.uid:
            raise Refused(f"expected project {self._project.uid} on {self._client.url}, got {project_uid(remote)}")
        with self._context.store.read() as session:
            order = current_order(session, self._project.id)
        if order in {None, Order.SEQUENTIAL}:
            raise Refused(
                "expected tasks that are given out at random or by the model's doubt, got sequential order: labels "
                "made in an order that nobody vouches for prove nothing about the rest; set the project's sampling to "
                "uniform, or connect with --shuffled if the collection is in random order"
            )

    def _now(self) -> tuple[View, ModelRecord, int | None]:
        """Return what serves in this moment: the view, its model and version."""
        context = self._context
        remote = self._client.project(int(self._project.key))
        views = Views(context.settings, context.store, context.loader, poll=0.0, models=context.views.models)
        view = views.view(self._project.uid, str(remote["label_config"]))
        header = view.model

        def find(session: Session) -> tuple[ModelRecord, int | None]:
            details = None if header.origin is None else header.origin.details()
            model = ensure_model(session, header.name, header.hash, classes=header.classes, details=details)
            version = active_version(session, self._project.id, model_id=model.id)
            return model, None if version is None else version.id

        model, version = context.store.run(find)
        return view, model, version

    def _predict_labelled(self, view: View, model: ModelRecord) -> None:
        """Ask the model about blind tasks that were labelled before it came: their doubts and labelings are needed."""
        with self._context.store.read() as session:
            labels = [each for each in equal_labels(session, self._project, model_id=model.id) if each.ranked is None]
        lacking = [each for each in labels if each.text is not None]
        if not lacking:
            return
        remote = self._client.project(int(self._project.key))
        fresh = FreshPredictions(self._context, self._project, view, label_config=str(remote["label_config"]))
        try:
            for begin in range(0, len(lacking), 50):
                fresh.of([_as_task(each, view.target.text.key) for each in lacking[begin : begin + 50]])
                self._context.heartbeat(done=begin, total=len(lacking), note="predicting labelled blind tasks")
        finally:
            fresh.close()

    def _decide(self, view: View, model: ModelRecord, version: int | None) -> Standing:
        return self._context.store.run(
            lambda session: decide(
                session,
                self._project,
                self._wish,
                model_id=model.id,
                version_id=version,
                target=view.target,
                who=self._who,
            )
        )

    def _act(self, decision: AcceptanceRecord, model: ModelRecord) -> dict[str, Any]:
        self._check_drift(model)
        account = int(self._client.whoami()["id"])
        sent = found = left = 0
        stopped = None
        for turn in range(MOST_ROUNDS):
            view, now, version = self._now()
            if now.id != decision.model_id:
                stopped = "the model changed meanwhile: ask again, the decision about the new one is due"
                break
            if turn:
                publish_project(self._context, self._client, self._project)
            plan(self._context, self._project, decision, view=view, version_id=version, account=account)
            sender = Sender(self._context, self._client, self._project, decision, view=view, account=account)
            changed = self._send(sender, decision, model=now.id, version=version)
            sent, found, left = sent + sender.sent, found + sender.found, left + sender.left
            if not changed:
                break
        with self._context.store.read() as session:
            counts = count_accepted(session, self._project.id).get(decision.id, {})
        result = {"accepted": sent + found, "left_alone": left, "in_all": counts}
        return result | ({} if stopped is None else {"stopped": stopped})

    def _send(self, sender: Sender, decision: AcceptanceRecord, *, model: int, version: int | None) -> bool:
        """Send all that is planned; returns whether another version or model came meanwhile, and drops the rest.

        So it is where somebody withdraws the decision meanwhile: what is planned is theirs to take back.
        """
        try:
            while sender.send_page():
                if self._is_withdrawn(decision):
                    return False
                _, now, current = self._now()
                if (now.id, current) != (model, version):
                    self._context.store.run(lambda session: forget_plan(session, decision.id))
                    return True
        except LabelStudioError as error:
            if error.status != REFUSED:
                raise
            self._context.store.run(lambda session: forget_plan(session, decision.id))
            raise Refused(f"expected an account that may annotate, got one that may not: {error}") from None
        return False

    def _is_withdrawn(self, decision: AcceptanceRecord) -> bool:
        with self._context.store.read() as session:
            found = {each.id: each.withdrawn_at for each in list_acceptances(session, self._project.id)}
        return found.get(decision.id) is not None

    def _check_drift(self, model: ModelRecord) -> None:
        with self._context.store.read() as session:
            alarms = list_alarms(session, self._project.id)
        if any(each.kind == DRIFT and each.acknowledged_at is None for each in alarms):
            raise Refused(
                f"expected no sign of drift, got an alarm that nobody has seen ({model.version}): labels from before "
                "the change prove nothing about what came after; look at the alarm on the dashboard first"
            )


def _as_task(label: BlindLabel, key: str) -> dict[str, Any]:
    """Return a task with the text that is stored, which is plain whatever the project shows."""
    data = {key: PlainText(label.text or "")} | ({"language": label.language} if label.language else {})
    return {"id": int(label.task) if label.task.isdigit() else label.task, "data": data}
