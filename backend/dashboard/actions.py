"""What can be asked for on a project's page: each is explained first, done in one transaction, and recorded there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from sqlalchemy.orm import Session

from backend.calibration.promotion import PROMOTED
from backend.dashboard.acceptance import ACCEPT, PREVIEW, WITHDRAW, acceptance_question, queue_acceptance
from backend.dashboard.models import promotion_question, serve_model, training_question
from backend.dashboard.subject import Subject
from backend.domain.alpha import plain_alpha
from backend.errors import NotFound
from backend.jobs.kinds import queue_publish, queue_refit, queue_second_looks, queue_sync, queue_train
from backend.labelstudio.payloads import InvalidPayload
from backend.store.actions import record_action
from backend.store.monitor import acknowledge_alarm, load_alarm
from backend.store.overview import VersionSummary, version_summary
from backend.store.projects import set_project_alpha
from backend.store.second_looks import settle_look
from backend.store.thresholds import activate_version

REFIT, ROLLBACK, SYNC, ALPHA, KEEP, SEEN = "refit", "rollback", "sync", "alpha", "keep", "seen"
TRAIN = "train"
ACTIONS = (REFIT, ROLLBACK, SYNC, ALPHA, KEEP, SEEN, ACCEPT, PREVIEW, WITHDRAW, PROMOTED, TRAIN)
DONE = {
    REFIT: "A refit is queued: the new version appears under Labels and thresholds when it is done.",
    ROLLBACK: "The earlier version serves from now on; predictions in Label Studio are being refreshed.",
    SYNC: "A reconciliation is queued: what it finds appears under Models and jobs.",
    ALPHA: "Alpha is changed and a refit is queued: sets change when its version serves.",
    KEEP: "The label counts as right and leaves the list; it comes back only if it changes.",
    ACCEPT: "Acceptance is queued: what it did appears under What is left.",
    PREVIEW: "The decision is queued: it appears under What is left when it is made.",
    WITHDRAW: "Taking back is queued: nothing more is accepted from now on.",
    PROMOTED: "The model is the project's own from now on; labels are being scored under it where that is needed.",
    TRAIN: "A training is queued: how far it is appears under Models and jobs.",
    SEEN: "The alarm is marked as seen: it stays in the list, and is raised again after a week if its cause persists.",
}
_UNKNOWN = f"expected {', '.join(ACTIONS[:-1])} or {ACTIONS[-1]}, got another action: see the project's page"


@dataclass(frozen=True)
class Question:
    """What a person is asked before something is done: `fields` travel with the answer."""

    action: str
    title: str
    explanation: tuple[str, ...]
    button: str
    fields: Mapping[str, str] = field(default_factory=dict)


def ask(subject: Subject, action: str, given: Mapping[str, str]) -> Question:
    """Say what an action would do.

    Raises:
        NotFound: for an unknown action, or a version that is not the project's.
        InvalidPayload: when alpha cannot be used.
    """
    name = subject.name
    if action == REFIT:
        return Question(
            REFIT,
            f"Refit {name} now?",
            (
                (
                    "Thresholds are fitted on all labels that may calibrate, and the new version serves at once; "
                    "predictions in Label Studio are refreshed afterwards. If nothing has changed, no version is made."
                ),
                (
                    "Refit because labels have come in, not because sets look too large or too small: choosing the "
                    "moment by what the thresholds say would break the promise."
                ),
            ),
            "Refit now",
        )
    if action == SYNC:
        asked = subject.settings.label_studio_api_key is not None
        return Question(
            SYNC,
            f"Reconcile {name} with Label Studio now?",
            (
                "Label Studio is asked for every annotation that its webhooks did not deliver; nothing there changes.",
                *(
                    ()
                    if asked
                    else ("LABEL_STUDIO_URL and LABEL_STUDIO_API_KEY are not set, so nothing will be found.",)
                ),
            ),
            "Sync now",
        )
    if action == ALPHA:
        alpha = read_alpha(given)
        share = f"{(100 * (1 - Decimal(alpha))).normalize():f} %"
        return Question(
            ALPHA,
            f"Change alpha of {name} from {subject.wanted_alpha} to {alpha}?",
            (
                (
                    f"Sets will be made to hold the right labeling in at least {share} of tasks. A smaller alpha means "
                    "larger sets and more amber spans."
                ),
                (
                    "A refit makes the version that carries it; until that serves, sets stay as they are. Live "
                    "coverage is counted per alpha, so its figures start again."
                ),
            ),
            f"Change alpha to {alpha}",
            {"alpha": alpha},
        )
    if action == ROLLBACK:
        version = _version(subject, given)
        return Question(
            ROLLBACK,
            f"Roll {name} back to version {version.id}?",
            (
                (
                    f"Version {version.id} of {version.created_at:%Y-%m-%d %H:%M} UTC (alpha {version.alpha}, "
                    f"guarantee {version.guarantee}, {version.details.get('rows', version.n):,} labels) serves at "
                    "once, and predictions in Label Studio are refreshed."
                ),
                f"The project's alpha becomes {version.alpha}. The next refit makes a new version from all labels.",
            ),
            f"Serve version {version.id}",
            {"version": str(version.id)},
        )
    if action == KEEP:
        task = _task(given)
        return Question(
            KEEP,
            f"Is the label of task {task} right as it is?",
            (
                "Look at the text once more before you say so, and decide by the text, not by what the model says.",
                (
                    "If it is right, it leaves the list of second looks and comes back only if it changes. If it is "
                    "wrong, correct it in Label Studio instead: the corrected label leaves the list too."
                ),
            ),
            "It is right",
            {"task": task},
        )
    if action == SEEN:
        alarm = load_alarm(subject.session, subject.project.id, alarm_id=_number(given.get("alarm", "")))
        return Question(
            SEEN,
            f"Mark the alarm {alarm.kind} as seen?",
            (
                alarm.message,
                (
                    "Do so when somebody acts on it. It stays in the list but no longer counts as active; if its cause "
                    "persists after a week, it is raised again."
                ),
            ),
            "Mark as seen",
            {"alarm": str(alarm.id)},
        )
    if action in {ACCEPT, PREVIEW, WITHDRAW}:
        title, explanation, button, fields = acceptance_question(subject, action, given)
        return Question(action, title, explanation, button, fields)
    if action == TRAIN:
        title, explanation, button, fields = training_question(subject)
        return Question(action, title, explanation, button, fields)
    if action == PROMOTED:
        title, explanation, button, fields = promotion_question(subject, given)
        return Question(action, title, explanation, button, fields)
    raise NotFound(_UNKNOWN)


def perform(session: Session, subject: Subject, action: str, *, given: Mapping[str, str], who: str) -> None:
    """Do what was asked for and record it, in the session's transaction.

    `subject` must have been read with this session. Raises as `ask` does.
    """
    if action == PROMOTED:
        serve_model(session, subject, given=given, who=who)
        return
    project = subject.project
    details: dict[str, Any] = {}
    if action in {REFIT, ALPHA}:
        if action == ALPHA:
            alpha = read_alpha(given)
            details = {"from": subject.wanted_alpha, "to": alpha}
            set_project_alpha(session, project.id, alpha=alpha)
        reason = f"asked for by {who}" if action == REFIT else f"alpha {details['to']}, by {who}"
        details["job"] = queue_refit(session, project, reason=reason)
    elif action == SYNC:
        details["job"] = queue_sync(session, project)
    elif action == TRAIN:
        details["job"] = queue_train(session, project, who=who)
    elif action == ROLLBACK:
        version = _version(subject, given)
        before = activate_version(session, version.id, reason=f"roll-back by {who}").previous_id
        set_project_alpha(session, project.id, alpha=version.alpha)
        job = queue_publish(session, project)
        details = {"version": version.id, "before": before, "alpha": version.alpha, "job": job}
    elif action == KEEP:
        task = _task(given)
        revision = settle_look(session, project.id, task=task)
        if revision is None:
            raise NotFound("expected a task whose label was checked, got another: see the list of second looks")
        job = queue_second_looks(session, project)
        details = {"task": task, "revision": revision, "job": job}
    elif action == SEEN:
        alarm = load_alarm(session, project.id, alarm_id=_number(given.get("alarm", "")))
        acknowledge_alarm(session, project.id, alarm_id=alarm.id)
        details = {"alarm": alarm.id, "kind": alarm.kind, "where": alarm.stratum}
    elif action in {ACCEPT, PREVIEW, WITHDRAW}:
        details = queue_acceptance(session, subject, action, given=given, who=who)
    else:
        raise NotFound(_UNKNOWN)
    record_action(session, project.id, who=who, action=action, details=details)


def read_alpha(given: Mapping[str, str]) -> str:
    """Return the alpha that a form carries.

    Raises:
        InvalidPayload: when it is not a number between 0 and 1.
    """
    try:
        return plain_alpha(given.get("alpha", ""))
    except ValueError as error:
        raise InvalidPayload(str(error), "something else") from None


def _task(given: Mapping[str, str]) -> str:
    task = given.get("task", "")
    if not task or len(task) > 200 or not task.isprintable():
        raise InvalidPayload("the id of a task", "something else")
    return task


def _number(raw: str) -> int:
    return int(raw) if raw.isascii() and raw.isdigit() and len(raw) <= 18 else 0


def _version(subject: Subject, given: Mapping[str, str]) -> VersionSummary:
    number = _number(given.get("version", ""))
    version = None
    if subject.model is not None:
        version = version_summary(subject.session, subject.project.id, model_id=subject.model.id, version_id=number)
    if version is None:
        raise NotFound("expected a version of this project and its model, got another: see its threshold history")
    return version
