"""What a lead reads first: is the promise kept, what to do next, how good, what was saved, how far to go."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flask import url_for

from backend.acceptance.report import default_wish
from backend.calibration.evidence import Evidence
from backend.dashboard.state import State, guarantee_state
from backend.dashboard.subject import Subject, guarantee_word
from backend.dashboard.worth import describe_accuracy, describe_left, describe_saving, describe_work
from backend.domain.streams import Order
from backend.monitoring.report import task_figure
from backend.prediction.calibration import known_method
from backend.review.second_looks_report import looks_state
from backend.store.judgements import STRATUM, add_up
from backend.store.monitor import list_alarms
from backend.store.sampling import current_order
from backend.worth.next_step import Facts, Step, Where, next_step
from conformal.strata import EMPTY

ENOUGH = 20  # labels compared, below which a share says nothing


@dataclass(frozen=True)
class Tile:
    """One answer: a question, a large figure (or none yet), what it is, and a sentence."""

    name: str
    title: str
    figure: str
    unit: str
    sentence: str
    tab: str
    tone: str = ""  # good or bad


@dataclass(frozen=True)
class Summary:
    """Everything at the top of a project's page."""

    state: State
    step: Step
    href: str
    alarms: int
    tiles: tuple[Tile, ...] = field(default=())


def summarise(subject: Subject) -> Summary:
    """Return the summary of a project."""
    raised = list_alarms(subject.session, subject.project.id)
    alarms = sum(each.acknowledged_at is None for each in raised)
    step = next_step(facts_of(subject, alarms=alarms))
    return Summary(
        guarantee_state(subject),
        step,
        address(subject, step),
        alarms,
        (_kept(subject, alarms), _good(subject), _saved(subject), _far(subject)),
    )


def facts_of(subject: Subject, *, alarms: int) -> Facts:
    """Return what the next step depends on, from counters and the kept record."""
    found: dict[str, Any] = subject.worth["left"] or {}
    steps = {each["name"]: each for each in subject.worth["milestones"]}
    looks = looks_state(subject.session, subject.project, subject.model)
    order: Order | None = current_order(subject.session, subject.project.id)
    accepting = steps.get("acceptance")
    method = known_method(subject.settings.method if subject.version is None else subject.version.method)
    return Facts(
        word=guarantee_word(subject.version, method=subject.settings.method, starter=subject.starter),
        order=order,
        exact=method is not None and method.worth == "exact",
        blank=subject.blank,
        alarms=alarms,
        labels=sum(cell.tasks for cell in (*subject.cells, *subject.excluded)),
        missing=steps["own"]["missing"],
        training=steps["training"]["missing"] if "training" in steps else None,
        waits=subject.version is not None and subject.wanted_alpha != subject.alpha,
        due=accepting is not None and not accepting["missing"],
        acceptable=found.get("acceptable") or 0,
        listed=looks["listed"],
        left=found.get("left"),
        places=found.get("places") or 0,
    )


def address(subject: Subject, step: Step) -> str:
    """Return where the button of a step leads; where Label Studio's address is not known, to what waits."""
    uid, base = subject.project.uid, subject.settings.people_url
    if step.where in {Where.LABEL, Where.SETTINGS} and base and subject.project.key.isdigit():
        place = "data" if step.where is Where.LABEL else "settings"
        return f"{base.rstrip('/')}/projects/{subject.project.key}/{place}"
    if step.where is Where.ACCEPT:
        wished = default_wish(subject.session, subject.project.id).max_error
        return url_for("dashboard.ask", uid=uid, action="accept", max_error=wished)
    if step.where is Where.DECIDE:
        wished = default_wish(subject.session, subject.project.id).max_error
        return url_for("dashboard.ask", uid=uid, action="preview", max_error=wished)
    if step.where in {Where.SYNC, Where.REFIT}:
        return url_for("dashboard.ask", uid=uid, action=step.where.value)
    if step.where is Where.REPORT:
        return url_for("dashboard.report", uid=uid)
    if step.where is Where.ALARMS:
        return url_for("dashboard.project", uid=uid, tab="promise", _anchor="section-alarms")
    anchor = "section-second-looks" if step.where is Where.LOOKS else "section-queue"
    return url_for("dashboard.project", uid=uid, tab="work", _anchor=anchor)


def _kept(subject: Subject, alarms: int) -> Tile:
    rows = [row for row in subject.rows if row.scope == STRATUM and row.kind == Evidence.BLIND and row.name != EMPTY]
    figure = task_figure(add_up(rows))
    judged, target = figure["judged"], f"{100 * subject.target:.4g} %"
    title = "Is the promise kept?"
    alarm = "" if not alarms else " An alarm stands." if alarms == 1 else f" {alarms:,} alarms stand."
    if judged < ENOUGH:
        more = f" ({judged:,} so far)" if judged else ""
        said = f"It takes {ENOUGH} blind labels of the last {subject.days} days to say anything{more}.{alarm}"
        return Tile("kept", title, "–", "not measured yet", said, "promise", "bad" if alarms else "")
    low, high = figure["interval_95"]
    share = figure["coverage"]
    holds = high >= subject.target
    verdict = "kept as far as can be told" if holds else "chance does not explain it"
    said = (
        f"Of {judged:,} blind labels of the last {subject.days} days the set held {100 * share:.1f} % "
        f"({100 * low:.1f} to {100 * high:.1f} %); promised are {target}: {verdict}.{alarm}"
    )
    tone = "bad" if alarms or not holds else "good"
    return Tile("kept", title, f"{100 * share:.1f} %", f"held, {target} promised", said, "promise", tone)


def _good(subject: Subject) -> Tile:
    found = subject.worth["accuracy"]
    title = "How good are the prelabels?"
    if not found:
        return Tile("good", title, "–", "not measured yet", _WAIT, "worth")
    total = found[0]
    if total["f1"] is None and not total["missing"]:
        return Tile("good", title, "–", "nothing to measure", describe_accuracy(found), "worth")
    if total["f1"] is None:
        unit = "more blind label to know" if total["missing"] == 1 else "more blind labels to know"
        return Tile("good", title, f"{total['missing']:,}", unit, describe_accuracy(found), "worth")
    return Tile(
        "good",
        title,
        f"{100 * total['f1'][0]:.1f} %",
        "F1 of the likeliest labeling",
        describe_accuracy(found),
        "worth",
    )


def _saved(subject: Subject) -> Tile:
    found = subject.worth["saving"] or {}
    title, total = "What did they save?", found.get("total")
    if total is None:
        said = "It takes tasks with and without a prelabel, labelled by the same person in a random order."
        return Tile("saved", title, "–", "nothing to compare yet", said, "worth")
    saved = 1 - total["ratio"]
    tone = {"saves": "good", "slower": "bad"}.get(total["verdict"], "")
    unit = {"saves": "of a task's time", "slower": "longer with prelabels"}.get(total["verdict"], "not significant")
    return Tile("saved", title, f"{100 * abs(saved):.0f} %", unit, describe_saving(found), "worth", tone)


def _far(subject: Subject) -> Tile:
    found = subject.worth["left"] or {}
    title = "How far is the end?"
    if not found.get("tasks"):
        return Tile("far", title, "–", "not measured yet", _WAIT, "work")
    unit = "task left" if found["left"] == 1 else "tasks left"
    said = f"{describe_left(found)} {describe_work(found)}".strip()
    return Tile("far", title, f"{found['left']:,}", unit, said, "work", "" if found["left"] else "good")


_WAIT = "The worker measures it minutes after the first labels, and again as they come."
