"""Figures of how the loop runs: thresholds, evidence, queue, alarms, drift, jobs, inbox, reconciliation, actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from flask import url_for

from backend.alarms import ADVICE
from backend.dashboard.actions import SEEN
from backend.dashboard.charts import step_chart
from backend.dashboard.coverage import WORDS
from backend.dashboard.figures import Figure, Link, columns
from backend.dashboard.subject import Subject
from backend.evidence import Evidence, count_evidence
from backend.http.reconciliation import describe
from backend.review import in_review_order, review_queue
from backend.store.actions import list_actions
from backend.store.events import inbox_depth, oldest_pending
from backend.store.jobs import list_jobs
from backend.store.monitor import DRIFT, list_alarms, list_monitors
from backend.store.overview import threshold_history, version_summaries
from backend.store.thresholds import list_activations, load_thresholds
from backend.store.types import AlarmRecord
from conformal.monitor.martingale import ALARM

VERSIONS, QUEUE, ALARMS, JOBS, ACTIONS = 30, 25, 25, 20, 30
EXCLUSIONS = {
    "undrawn": "shown before its place was drawn, or in an order nobody knows",
    "queue": "labelled while the model's doubt decided the order of work",
    "sequential": "labelled in an order nobody vouches for",
    "trained": "the model was trained on it",
    "skipped": "skipped",
    "bulk": "copied in bulk from predictions",
    "withdrawn": "withdrawn",
}
DOING = {
    "refit": "fit thresholds again",
    "rollback": "serve an earlier version",
    "sync": "reconcile",
    "alpha": "alpha",
    "keep": "found a label right at a second look",
    "seen": "marked an alarm as seen",
}


def thresholds(subject: Subject) -> Figure:
    """Show the versions, newest first, each with a way back to it."""
    found = (
        []
        if subject.model is None
        else version_summaries(subject.session, subject.project.id, model_id=subject.model.id, limit=VERSIONS)
    )
    active = None if subject.version is None else subject.version.id
    rows = tuple(
        (
            each.id,
            "serves now" if each.id == active else "",
            each.created_at,
            each.alpha,
            each.method,
            each.evidence.replace("+", " and "),
            each.guarantee,
            each.details.get("rows", each.n),
        )
        for each in found
    )
    links = tuple(
        None
        if each.id == active
        else Link(
            "Roll back",
            url_for("dashboard.ask", uid=subject.project.uid, action="rollback", version=each.id),
            f"Roll back to version {each.id}",
        )
        for each in found
    )
    history = threshold_history(subject.session, sorted(each.id for each in found))
    return Figure(
        "thresholds",
        "Threshold history",
        "A version is made whenever thresholds are fitted again and never changes; the chart shows the thresholds of "
        "the pools with most labels (higher means larger sets), and gaps where there are too few labels for any limit.",
        columns(
            "Version",
            "State",
            "Made at (UTC)",
            "Alpha",
            "Method",
            "Evidence",
            "Guarantee",
            "Labels",
            count=[0, 7],
            time=[2],
        ),
        rows,
        f"No version yet: the starter calibration serves. The first one is made after "
        f"{subject.settings.refit_every_labels or 20} labels, or after {subject.settings.refit_every_minutes:g} "
        "minutes with any new label; Refit now does it at once.",
        chart=step_chart(history),
        links=links,
    )


def pools(subject: Subject) -> Figure:
    """Show the thresholds that serve now."""
    found = [] if subject.version is None else load_thresholds(subject.session, subject.version.id)
    worth: Mapping[str, str] = {} if subject.version is None else subject.version.details.get("guarantees", {})
    rows = tuple(
        (
            "class" if each.kind != "pool" else "pool",
            each.pool,
            each.n,
            each.n_infinite,
            each.tau,
            worth.get(each.pool, "") if each.kind == "pool" else "",
        )
        for each in found
    )
    return Figure(
        "pools",
        "Thresholds that serve now",
        "Texts of one pool share a threshold; strata with too few labels are pooled with their neighbours. Labels out "
        "of reach are labelings that the model cannot express; they count against the threshold.",
        columns("Kind", "Pool or class", "Labels", "Out of reach", "Threshold", "Guarantee", count=[2, 3], number=[4]),
        rows,
        "No thresholds of your own yet: those of the starter calibration serve, which promise nothing for your texts.",
    )


def evidence(subject: Subject) -> Figure:
    """Show the labels that thresholds rest on, and those that may not."""
    counts = count_evidence(subject.cells)
    names = {**WORDS, Evidence.FILE.value: "from a labelled file"}
    rows: list[tuple[Any, ...]] = [(names.get(kind, kind), "counts", n) for kind, n in sorted(counts.items())]
    left: dict[str, int] = {}
    for cell in subject.excluded:
        if cell.n:
            left[cell.exclusion] = left.get(cell.exclusion, 0) + cell.n
    rows += [(EXCLUSIONS.get(reason, reason), "left out", n) for reason, n in sorted(left.items())]
    skips = {} if subject.version is None else subject.version.details.get("skips") or {}
    lead = ""
    if skips.get("unresolved"):
        lead = (
            f"{skips['unresolved']:,} tasks drawn for calibration were skipped at the last refit "
            f"({skips['share']:.1%}): open them again and label them, or the promise is about tasks that people label."
        )
    return Figure(
        "evidence",
        "Labels that thresholds rest on",
        "Only labels of randomly drawn tasks may set thresholds; as soon as there are "
        f"{subject.settings.n_min} made without a prelabel, thresholds rest on those alone.",
        columns("Labels made", "Use", "Labels", count=[2]),
        tuple(rows),
        "No label counts yet. Labels arrive by Label Studio's webhook, by reconciliation, or from a file with "
        "`surespan calibrate`.",
        lead=lead,
    )


def activations(subject: Subject) -> Figure:
    """When which version began to serve."""
    found = (
        []
        if subject.model is None
        else list_activations(subject.session, subject.project.id, model_id=subject.model.id, limit=VERSIONS)
    )
    return Figure(
        "activations",
        "What served when",
        "Each time another version began to serve, and why; a roll-back is one of these too.",
        columns("At (UTC)", "Version", "Before it", "Why", count=[1, 2], time=[0]),
        tuple((each.at, each.version_id, each.previous_id, each.reason) for each in found),
        "Nothing yet: the first refit activates the first version.",
    )


def queue(subject: Subject) -> Figure:
    """Show what to look at next."""
    found = (
        []
        if subject.model is None
        else review_queue(
            subject.session, subject.project.id, model_id=subject.model.id, settings=subject.settings, limit=QUEUE
        )
    )
    rows = tuple(
        (each.task, None, None, "audit, shown blank", "", None)
        if each.blind
        else (
            each.task,
            each.value,
            each.probability,
            "open" if each.is_open else "empty" if each.set_size == 0 else each.set_size,
            each.stratum,
            each.served_at,
        )
        for each in found
    )
    base = subject.settings.people_url
    followed = in_review_order(subject.session, subject.project.id)
    links: tuple[Link | None, ...] = ()
    if followed and base and subject.project.key.isdigit():
        place = f"{base.rstrip('/')}/projects/{subject.project.key}/data?task="
        links = tuple(
            Link("Open", place + quote(each.task), f"Open task {each.task} in Label Studio") for each in found
        )
    return Figure(
        "queue",
        "Review queue",
        "Unlabelled tasks, the one most worth a look first: empty and open sets, then by the doubt about the best "
        "labeling, the spans expected to be wrong in it, its flags and how new the text is. Audit tasks stand at "
        "random places. Tasks that somebody has open or has claimed are left out. Labels made in this order are no "
        "random sample: "
        + (
            "only those of audit tasks may set thresholds."
            if followed
            else "this project gives its tasks out otherwise and all its labels count, so do not work down this list "
            "by hand. To follow it, choose uncertainty sampling in Label Studio or claim tasks with --review-order; "
            "from then on only audit tasks set thresholds."
        ),
        columns(
            "Task",
            "Worth of a look",
            "Probability of the best",
            "Set size",
            "Stratum",
            "Shown at (UTC)",
            number=[1],
            share=[2],
            time=[5],
        ),
        rows,
        "Nothing waits. Tasks appear here once predictions were made for them and nobody has labelled them yet.",
        links=links,
    )


def alarms(subject: Subject) -> Figure:
    """Show what the monitors raised, and what to do."""
    found = list_alarms(subject.session, subject.project.id, limit=ALARMS)
    rows = []
    for each in found:
        advice = ADVICE.get(each.kind, "")
        rows.append(
            (
                "seen" if each.acknowledged_at else "stands",
                each.kind,
                each.stratum or "all",
                each.raised_at,
                each.message.replace(advice, "").strip() if advice else each.message,
                advice,
            )
        )
    return Figure(
        "alarms",
        "Alarms",
        "Each kind is ever raised without cause with a probability of about 5 %, however often it is looked at; an "
        "alarm changes nothing by itself. One that was seen is raised again after a week if what raised it still "
        "holds then.",
        columns("State", "Kind", "Where", "Raised at (UTC)", "What was seen", "What to do", time=[3]),
        tuple(rows),
        "No alarm was ever raised. Drift, coverage below target and a proven sway of prelabels would stand here.",
        links=tuple(_seen(subject, each) for each in found),
    )


def _seen(subject: Subject, alarm: AlarmRecord) -> Link | None:
    if alarm.acknowledged_at is not None:
        return None
    address = url_for("dashboard.ask", uid=subject.project.uid, action=SEEN, alarm=alarm.id)
    return Link("Seen", address, f"Somebody has seen the alarm {alarm.kind} of {alarm.raised_at:%Y-%m-%d %H:%M}")


def drift(subject: Subject) -> Figure:
    """Show the bets against no drift."""
    found = (
        []
        if subject.model is None
        else list_monitors(subject.session, subject.project.id, model_id=subject.model.id, kind=DRIFT)
    )
    watchers = max(1, len(found)) if len(found) > 2 else 1
    kept = [each for each in found if not each.stratum or watchers > 1]
    return Figure(
        "drift",
        "Drift",
        f"Money won by betting that texts have changed: it stays near or below 1 while nothing changes, and reaches "
        f"the alarm ({ALARM * watchers:g}) by chance with a probability of 5 % at most.",
        columns("Texts", "Betting score", "Alarm at", "Labels seen", number=[1, 2], count=[3]),
        tuple((each.stratum or "all", each.value, float(ALARM * watchers), each.consumed) for each in kept),
        "Nothing watched yet: it begins with the first label of a randomly drawn task.",
    )


def jobs(subject: Subject) -> Figure:
    """Show what the worker did and has to do."""
    found = list_jobs(subject.session, project_id=subject.project.id, limit=JOBS)
    rows = tuple((each.id, each.kind, each.state, each.attempts, _progress(each), each.error or "") for each in found)
    return Figure(
        "jobs",
        "Jobs",
        "Work that one process at a time does for this project, newest first; a failed one says why.",
        columns("Job", "Kind", "State", "Tries", "Progress", "Error", count=[0, 3]),
        rows,
        "No job yet. Refits, reconciliations and publications appear here.",
    )


def inbox(subject: Subject) -> Figure:
    """Show what came in and waits; of all projects together."""
    depth = inbox_depth(subject.session)
    oldest = oldest_pending(subject.session)
    return Figure(
        "inbox",
        "Inbox",
        "Deliveries of Label Studio, of all projects together: waiting ones are processed within seconds while a "
        "worker runs; dead ones could not be understood, and are kept.",
        columns("State", "Deliveries", "Oldest (UTC)", count=[1], time=[2]),
        (("waiting", depth["pending"], oldest), ("dead", depth["dead"], None)),
        "",
    )


def reconciliation(subject: Subject) -> Figure:
    """Show what the last look at Label Studio found."""
    asked = subject.settings.label_studio_api_key is not None
    known = describe(subject.session, subject.project, asked=asked)
    last, total, published = known["last"] or {}, known["total"], known["publish"]["last"]
    rows: list[tuple[Any, ...]] = []
    if last:
        rows.append(("ended at", _moment(last.get("finished_at")), None))
    rows += [(name.replace("_", " "), last.get(name), count) for name, count in total.items()]
    if published is not None:
        rows.append(("Label Studio agrees with what serves", "yes" if published.get("agrees") else "not yet", None))
    lead = f"The last reconciliation failed: {known['error']}" if known["error"] else ""
    if not asked:
        lead = (
            "LABEL_STUDIO_URL and LABEL_STUDIO_API_KEY are not set: nothing is reconciled, and predictions in Label "
            "Studio are not refreshed."
        )
    elif not known["connected"]:
        lead = lead or f"Not connected: run `surespan connect --project {subject.project.key}`."
    return Figure(
        "reconciliation",
        "Reconciliation",
        f"Every {subject.settings.sync_every_minutes:g} minutes Label Studio is asked for what its webhooks did not "
        "deliver; Sync now asks at once.",
        columns("What", "Last time", "In all", count=[2]),
        tuple(rows),
        "Nothing was reconciled yet.",
        lead=lead,
    )


def actions(subject: Subject) -> Figure:
    """Show what people did on these pages."""
    found = list_actions(subject.session, subject.project.id, limit=ACTIONS)
    rows = tuple((each.at, each.who, DOING.get(each.action, each.action), _details(each.details)) for each in found)
    return Figure(
        "actions",
        "What people did",
        "Everything that was asked for with the buttons of this page: who, when and what came of it.",
        columns("At (UTC)", "Who", "What", "Details", time=[0]),
        rows,
        "Nobody has pressed a button yet.",
    )


def _details(details: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in details.items() if value is not None)


def _progress(job: Any) -> str:  # noqa: ANN401 - a JobRecord
    if job.progress_total:
        return f"{job.progress_done:,} of {job.progress_total:,} {job.progress_note}".strip()
    return str(job.progress_note)


def _moment(value: object) -> str:
    try:
        return datetime.fromisoformat(str(value)).strftime("%Y-%m-%d %H:%M UTC")
    except ValueError:
        return str(value)


MAKERS: dict[str, Callable[[Subject], Figure]] = {
    "thresholds": thresholds,
    "pools": pools,
    "activations": activations,
    "evidence": evidence,
    "queue": queue,
    "alarms": alarms,
    "drift": drift,
    "jobs": jobs,
    "inbox": inbox,
    "reconciliation": reconciliation,
    "actions": actions,
}
