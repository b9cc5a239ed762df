"""Figures of how the loop runs: thresholds, evidence, queue, alarms, drift, jobs, inbox, reconciliation, actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from flask import url_for

from backend.calibration.evidence import Evidence, count_evidence
from backend.dashboard.actions import SEEN
from backend.dashboard.charts import step_chart
from backend.dashboard.coverage import WORDS
from backend.dashboard.figures import Figure, Link, columns
from backend.dashboard.subject import Subject
from backend.domain.records import AlarmRecord
from backend.http.reconciliation import describe_sync
from backend.monitoring.alarms import ADVICE
from backend.review.queue import in_review_order, review_queue
from backend.store.actions import list_actions
from backend.store.aside import Aside, list_aside
from backend.store.disagreements import disagreements
from backend.store.events import inbox_depth, oldest_pending
from backend.store.jobs import list_jobs
from backend.store.monitor import DRIFT, list_alarms, list_monitors
from backend.store.overview import threshold_history, version_summaries
from backend.store.thresholds import list_activations, load_thresholds
from conformal.monitor.martingale import ALARM

VERSIONS, QUEUE, ALARMS, JOBS, ACTIONS, REASONS = 30, 25, 25, 20, 30, 4
EXCLUSIONS = {
    "undrawn": "shown before it was drawn, or in an unknown order",
    "queue": "labelled while the model's doubt decided the order of work",
    "sequential": "labelled in an order that nobody vouches for",
    "trained": "the model was trained on it",
    "skipped": "skipped",
    "bulk": "copied in bulk from predictions",
    "withdrawn": "withdrawn",
}
DOING = {
    "refit": "refitted thresholds",
    "rollback": "rolled back to an earlier version",
    "sync": "reconciled with Label Studio",
    "alpha": "changed alpha",
    "keep": "found a label right at a second look",
    "seen": "marked an alarm as seen",
}


def thresholds(subject: Subject) -> Figure:
    """Show the versions, newest first, each with a way back to it."""
    versions = (
        []
        if subject.model is None
        else version_summaries(subject.session, subject.project.id, model_id=subject.model.id, limit=VERSIONS)
    )
    active = None if subject.version is None else subject.version.id
    rows = tuple(
        (
            each.id,
            "in use" if each.id == active else "",
            each.created_at,
            each.alpha,
            each.method,
            each.evidence.replace("+", " and "),
            each.guarantee,
            each.details.get("rows", each.n),
        )
        for each in versions
    )
    links = tuple(
        None
        if each.id == active
        else Link(
            "Roll back",
            url_for("dashboard.ask", uid=subject.project.uid, action="rollback", version=each.id),
            f"Roll back to version {each.id}",
        )
        for each in versions
    )
    history = threshold_history(subject.session, sorted(each.id for each in versions))
    return Figure(
        "thresholds",
        "Threshold history",
        "A version is made whenever thresholds are fitted again and never changes; the chart shows the thresholds of "
        "the pools with most labels (higher means larger sets), with gaps where labels are too few for a limit.",
        columns(
            "Version",
            "State",
            "Created (UTC)",
            "Alpha",
            "Method",
            "Evidence",
            "Guarantee",
            "Labels",
            count=[0, 7],
            time=[2],
        ),
        rows,
        f"No version yet: the starter calibration is used. The first one is made after "
        f"{subject.settings.refit_every_labels or 20} labels, or after {subject.settings.refit_every_minutes:g} "
        "minutes with any new label; Refit now does it at once.",
        chart=step_chart(history),
        links=links,
    )


def pools(subject: Subject) -> Figure:
    """Show the thresholds that serve now."""
    serving = [] if subject.version is None else load_thresholds(subject.session, subject.version.id)
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
        for each in serving
    )
    return Figure(
        "pools",
        "Thresholds in use",
        "Texts of one pool share a threshold; strata with too few labels are pooled with their neighbours. Labels out "
        "of reach are labelings that the model cannot express; they count against the threshold.",
        columns("Kind", "Pool or class", "Labels", "Out of reach", "Threshold", "Guarantee", count=[2, 3], number=[4]),
        rows,
        "No thresholds of your own yet: the starter calibration is used, which promises nothing for your texts.",
    )


def evidence(subject: Subject) -> Figure:
    """Show the labels that thresholds rest on, and those that may not."""
    counts = count_evidence(subject.cells)
    names = {**WORDS, Evidence.FILE.value: "from a labelled file"}
    rows: list[tuple[Any, ...]] = [(names.get(kind, kind), "counts", n) for kind, n in sorted(counts.items())]
    left: dict[str, int] = {}
    for cell in subject.excluded:
        if cell.n:
            left[cell.exclusion] = left.get(cell.exclusion, 0) + cell.tasks
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
    changes = (
        []
        if subject.model is None
        else list_activations(subject.session, subject.project.id, model_id=subject.model.id, limit=VERSIONS)
    )
    return Figure(
        "activations",
        "Which version was in use when",
        "Each time another version came into use, and why; roll-backs included.",
        columns("At (UTC)", "Version", "Replaced", "Why", count=[1, 2], time=[0]),
        tuple((each.at, each.version_id, each.previous_id, each.reason) for each in changes),
        "Nothing yet: the first refit will activate the first version.",
    )


def queue(subject: Subject) -> Figure:
    """Show what to look at next."""
    tasks = (
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
        for each in tasks
    )
    base = subject.settings.people_url
    followed = in_review_order(subject.session, subject.project.id)
    links: tuple[Link | None, ...] = ()
    if followed and base and subject.project.key.isdigit():
        place = f"{base.rstrip('/')}/projects/{subject.project.key}/data?task="
        links = tuple(
            Link("Open", place + quote(each.task), f"Open task {each.task} in Label Studio") for each in tasks
        )
    return Figure(
        "queue",
        "Review queue",
        "Unlabelled tasks, those most worth a look first: empty and open sets, then by the doubt about the best "
        "labeling, the spans expected to be wrong in it, its flags and how new the text is. Audit tasks appear at "
        "random positions. Tasks that somebody has open or has claimed are left out. Labels in this order are not a "
        "random sample: "
        + (
            "only those of audit tasks may set thresholds."
            if followed
            else "this project uses another order and all its labels count, so do not work down this list "
            "by hand. To follow it, choose uncertainty sampling in Label Studio or claim tasks with --review-order; "
            "from then on only audit tasks set thresholds."
        ),
        columns(
            "Task",
            "Value of a look",
            "Probability of the best labeling",
            "Set size",
            "Stratum",
            "Shown (UTC)",
            number=[1],
            share=[2],
            time=[5],
        ),
        rows,
        "Nothing is waiting. Tasks appear here once they have predictions and no label.",
        links=links,
    )


def differing(subject: Subject) -> Figure:
    """Show tasks that annotators labelled differently."""
    found = disagreements(subject.session, subject.project.id, limit=QUEUE)
    return Figure(
        "disagreements",
        "Annotators disagree",
        "Tasks that several people labelled differently, whatever was predicted, those labelled first at the front. "
        "What most of them say counts, of as many the annotation with the lowest number. Mark the right annotation as "
        "ground truth in Label Studio, and only that counts; do so for all of these tasks, not only for some.",
        columns("Task", "Say what counts now", "Annotators", count=[1, 2]),
        tuple((each.task, each.votes, each.voters) for each in found),
        "Nobody disagrees: no task has two labels that differ.",
    )


def alarms(subject: Subject) -> Figure:
    """Show what the monitors raised, and what to do."""
    raised = list_alarms(subject.session, subject.project.id, limit=ALARMS)
    rows = []
    for each in raised:
        advice = ADVICE.get(each.kind, "")
        rows.append(
            (
                "seen" if each.acknowledged_at else "active",
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
        "Each kind is raised without cause with a probability of about 5 % in all, however often it is checked; an "
        "alarm changes nothing by itself. One marked as seen is raised again after a week if its cause "
        "persists.",
        columns("State", "Kind", "Where", "Raised (UTC)", "What was observed", "What to do", time=[3]),
        tuple(rows),
        "No alarm has been raised yet. Drift, coverage below target and influence of prelabels would appear here.",
        links=tuple(_seen(subject, each) for each in raised),
    )


def _seen(subject: Subject, alarm: AlarmRecord) -> Link | None:
    if alarm.acknowledged_at is not None:
        return None
    address = url_for("dashboard.ask", uid=subject.project.uid, action=SEEN, alarm=alarm.id)
    return Link("Mark as seen", address, f"Mark as seen: the alarm {alarm.kind} of {alarm.raised_at:%Y-%m-%d %H:%M}")


def drift(subject: Subject) -> Figure:
    """Show the bets against no drift."""
    monitors = (
        []
        if subject.model is None
        else list_monitors(subject.session, subject.project.id, model_id=subject.model.id, kind=DRIFT)
    )
    watchers = max(1, len(monitors)) if len(monitors) > 2 else 1
    shown = [each for each in monitors if not each.stratum or watchers > 1]
    return Figure(
        "drift",
        "Drift",
        f"What betting on changed texts would have won: it stays near or below 1 while nothing changes, and reaches "
        f"the alarm ({ALARM * watchers:g}) by chance with a probability of 5 % at most.",
        columns("Texts", "Betting score", "Alarm at", "Labels seen", number=[1, 2], count=[3]),
        tuple((each.stratum or "all", each.value, float(ALARM * watchers), each.consumed) for each in shown),
        "Nothing yet: watching begins with the first label of a randomly drawn task.",
    )


def jobs(subject: Subject) -> Figure:
    """Show what the worker did and has to do."""
    listed = list_jobs(subject.session, project_id=subject.project.id, limit=JOBS)
    rows = tuple((each.id, each.kind, each.state, each.attempts, _progress(each), each.error or "") for each in listed)
    return Figure(
        "jobs",
        "Jobs",
        "Background work for this project, newest first, each done by one process at a time; failed jobs say why.",
        columns("Job", "Kind", "State", "Attempts", "Progress", "Error", count=[0, 3]),
        rows,
        "No job yet. Refits, reconciliations and publications appear here.",
    )


def inbox(subject: Subject) -> Figure:
    """Show what came in and waits; of all projects together."""
    depth = inbox_depth(subject.session)
    oldest = oldest_pending(subject.session)
    aside = list_aside(subject.session)
    return Figure(
        "inbox",
        "Inbox",
        "Deliveries from Label Studio, for all projects together: waiting ones are processed within seconds while a "
        "worker runs. What failed several times is set aside and kept: `surespan sync --dead` tries it again.",
        columns("State", "Number", "Oldest (UTC)", "Reasons", count=[1], time=[2]),
        (("deliveries waiting", depth["pending"], oldest, ""), *(_aside(each) for each in aside)),
        "",
    )


def _aside(aside: Aside) -> tuple[str, int, None, str]:
    state = {"event": "dead deliveries", "label": "labels set aside", "job": "failed jobs"}[aside.kind]
    return state, aside.count, None, ", ".join(aside.reasons[:REASONS])


def reconciliation(subject: Subject) -> Figure:
    """Show what the last look at Label Studio found."""
    asked = subject.settings.label_studio_api_key is not None
    known = describe_sync(subject.session, subject.project, asked=asked)
    last, total, published = known["last"] or {}, known["total"], known["publish"]["last"]
    rows: list[tuple[Any, ...]] = []
    if last:
        rows.append(("ended at", _moment(last.get("finished_at")), None))
    rows += [(name.replace("_", " "), last.get(name), count) for name, count in total.items()]
    if published is not None:
        rows.append(("Label Studio shows what is being served", "yes" if published.get("agrees") else "not yet", None))
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
        columns("What", "Last time", "Total", count=[2]),
        tuple(rows),
        "Nothing has been reconciled yet.",
        lead=lead,
    )


def actions(subject: Subject) -> Figure:
    """Show what people did on these pages."""
    done = list_actions(subject.session, subject.project.id, limit=ACTIONS)
    rows = tuple((each.at, each.who, DOING.get(each.action, each.action), _details(each.details)) for each in done)
    return Figure(
        "actions",
        "What people did",
        "Everything that was done with the buttons on this page: who, when and with what result.",
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
    "disagreements": differing,
    "alarms": alarms,
    "drift": drift,
    "jobs": jobs,
    "inbox": inbox,
    "reconciliation": reconciliation,
    "actions": actions,
}
