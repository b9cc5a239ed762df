"""What the monitors know about a project, for pages, programs and metrics: each part with one sentence on what to do.

Reads counters, never rows of labels: the cost does not grow with their number.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from typing import Any

from sqlalchemy.orm import Session

from backend.calibration.adaptive import LEVEL, is_adaptive
from backend.calibration.evidence import Evidence, Gap, count_evidence
from backend.calibration.refit import skip_share
from backend.domain.records import ModelRecord, MonitorRecord, ProjectRecord, VersionRecord
from backend.monitoring.alarms import ADVICE, PROMISED, as_tasks, loss_interval, pools_a_task
from backend.prediction.remarks import ADAPTIVE_REMARK, describe_gap
from backend.store.calibration import load_cells
from backend.store.judgements import (
    CLASS,
    EXCLUDED,
    FLAG,
    MILLION,
    RISK,
    STRATUM,
    UNITS,
    WHOLE,
    CoverageRow,
    add_up,
    count_days,
    coverage_rows,
)
from backend.store.monitor import DRIFT, list_alarms, list_monitors, load_monitor
from backend.store.skips import skipped_tasks
from backend.store.thresholds import active_version
from conformal.monitor.coverage import below_target, clopper_pearson, confidence_sequence
from conformal.monitor.martingale import ALARM
from conformal.strata import EMPTY, SEEN

Sums = Mapping[str, int]
KINDS = (Evidence.BLIND.value, Evidence.ASSISTED.value, EXCLUDED)
_MOST_SKIPS = 100


def monitor_report(
    session: Session, project: ProjectRecord, model: ModelRecord | None, *, n_min: int, since: date | None = None
) -> dict[str, Any]:
    """Return evidence, coverage, drift, gap, skips and alarms of a project under a model as JSON values.

    Args:
        n_min: labels without a prelabel from which thresholds rest on those alone.
        since: count labels from this day on; all when None.
    """
    if model is None:
        return {"project": project.uid, "model": None, "advice": "Nothing has been served for this project yet."}
    version = active_version(session, project.id, model_id=model.id)
    rows = coverage_rows(session, project.id, model_id=model.id, since=since)
    return {
        "project": project.uid,
        "model": model.version,
        "threshold_version": 0 if version is None else version.id,
        "evidence": _evidence(session, project, model, version, n_min=n_min),
        "coverage": coverage_report(rows),
        "flags": flags_report(rows, version),
        "days": _days(session, project, model, since),
        "drift": _drift(session, project, model),
        "gap": gap_report(rows),
        "skips": _skips(session, project, model),
        "adaptive": _adaptive(session, project, model, version),
        "alarms": alarm_list(session, project.id),
    }


def coverage_report(rows: Sequence[CoverageRow]) -> dict[str, Any]:
    """Return how often what was shown held the label: overall, by stratum, language, length and class.

    Texts without a word are left out of figures, and those that trained the model are of no language and no length:
    they are a stratum of their own. Each figure carries an exact pointwise interval, and one that holds
    at all times at once.
    """
    tasks = [row for row in rows if row.scope == STRATUM and row.name != EMPTY]
    new = [row for row in tasks if row.name != SEEN]
    classes = [row for row in rows if row.scope == CLASS]
    flags = [row for row in rows if row.scope == FLAG]
    promised = [row for row in tasks if row.kind == Evidence.BLIND and row.guarantee in PROMISED and row.total]
    pools = _below(promised)
    worst = min((each["p_value"] for each in pools), default=1.0)
    return {
        "overall": {
            kind: task_figure(add_up(row for row in tasks if row.kind == kind), several=pools_a_task(rows, kind))
            for kind in KINDS
        },
        "units": _shares(row for row in rows if row.scope == UNITS),
        "whole": _shares(row for row in rows if row.scope == WHOLE),
        "strata": _grouped(tasks, lambda row: row.name, "stratum"),
        "languages": _grouped(new, lambda row: row.name.split("/")[0], "language"),
        "lengths": _grouped(new, lambda row: row.name.split("/")[-1], "length"),
        "classes": _classes(classes),
        "flags": {
            name: sum(row.total for row in flags if row.name == name) for name in sorted({f.name for f in flags})
        },
        "pools": pools,
        "below_target_p": min(1.0, worst * max(1, len(pools))),
        "advice": "Coverage is read off labels made without a prelabel; a small below_target_p (under 0.01) means that "
        "chance does not explain it: see the alarms.",
    }


def flags_report(rows: Sequence[CoverageRow], version: VersionRecord | None) -> dict[str, Any]:
    """Return what the flags promise, pool by pool, and apart from it what labels that came later measured.

    Measured is the share of a task's entities that were wrong or missing where nothing was flagged, on labels made
    without a prelabel, under the flags that were in use then; with an interval that holds at all times at once.
    """
    risks = [row for row in rows if row.scope == RISK and row.kind == Evidence.BLIND]
    levels = None if version is None else version.details.get("risk")
    measured = [
        {"max_error": promised, "guarantee": word, **_loss(add_up(r for r in risks if (r.alpha, r.guarantee) == key))}
        for key in sorted({(row.alpha, row.guarantee) for row in risks})
        for promised, word in [key]
    ]
    return {
        "promised": levels,
        "measured": measured,
        "advice": "If every amber place is put right, on average at most the promised share of a task's entities is "
        "wrong or missing. Measured figures come from labels that had no part in choosing the level."
        if levels is not None
        else "No promise of your own yet: label more tasks without a prelabel (blank tasks).",
    }


def _loss(sums: Sums) -> dict[str, Any]:
    return {
        "tasks": sums["total"],
        "risk": sums["size"] / MILLION / sums["total"],
        "always_95": list(loss_interval(sums)),
        "without_errors": sums["covered"],
    }


def _shares(rows: Iterable[CoverageRow]) -> dict[str, Any]:
    """Return, by kind, how many units (or whole texts) there were and how many of their sets held the label.

    Without an interval: units of one task are no independent draws, and nothing is promised for whole texts.
    """
    held = list(rows)
    sums = {kind: add_up(row for row in held if row.kind == kind) for kind in KINDS}
    return {
        kind: {
            "tasks": each["tasks"],
            "judged": each["total"],
            "covered": each["covered"],
            "coverage": each["covered"] / each["total"] if each["total"] else None,
            "shown": each["shown"],
        }
        for kind, each in sums.items()
    }


def task_figure(sums: Sums, *, several: float = 1.0) -> dict[str, Any]:
    """Return the figures of added-up counters of full sets.

    `several` says in how many pools a task counts on average, where counts of several pools are added up: intervals are
    then of tasks.
    """
    total, covered = sums["total"], sums["covered"]
    held = as_tasks(covered, total, several)
    closed = sums["tasks"] - sums["open"]
    return {
        "tasks": sums["tasks"],
        "judged": total,
        "covered": covered,
        "coverage": covered / total if total else None,
        "interval_95": list(clopper_pearson(*held)) if held[1] else None,
        "always_95": list(confidence_sequence(*held)) if held[1] else None,
        "shown": sums["shown"],
        "shown_coverage": sums["shown"] / total if total else None,
        "accepted": sums["accepted"],
        "open": sums["open"],
        "empty": sums["empty"],
        "singleton": sums["singleton"],
        "mean_size": sums["size"] / closed if closed else None,
    }


def _grouped(rows: Sequence[CoverageRow], name: Callable[[CoverageRow], str], what: str) -> list[dict[str, Any]]:
    figures = []
    for key in sorted({(name(row), row.kind) for row in rows}):
        sums = add_up(row for row in rows if (name(row), row.kind) == key)
        figures.append({what: key[0], "kind": key[1], **task_figure(sums)})
    return figures


def _classes(rows: Sequence[CoverageRow]) -> list[dict[str, Any]]:
    figures = []
    for name, kind in sorted({(row.name, row.kind) for row in rows}):
        sums = add_up(row for row in rows if (row.name, row.kind) == (name, kind))
        figures.append(
            {
                "class": name,
                "kind": kind,
                "tasks": sums["tasks"],
                "entities": sums["total"],
                "covered": sums["covered"],
                "coverage": sums["covered"] / sums["total"] if sums["total"] else None,
            }
        )
    return figures


def _below(rows: Iterable[CoverageRow]) -> list[dict[str, Any]]:
    """Judge each pool of each version against the law of its own threshold (METHODS 8.8)."""
    groups: dict[tuple[int, str, int, str], list[CoverageRow]] = {}
    for row in rows:
        groups.setdefault((row.version_id, row.pool, row.n, row.alpha), []).append(row)
    figures = []
    for (version, pool, n, alpha), mine in sorted(groups.items()):
        sums = add_up(mine)
        p = below_target(sums["covered"], sums["total"], n=n, alpha=alpha)
        figures.append(
            {
                "threshold_version": version,
                "pool": pool,
                "n": n,
                "alpha": alpha,
                "judged": sums["total"],
                "covered": sums["covered"],
                "p_value": p,
            }
        )
    return figures


def gap_report(rows: Iterable[CoverageRow]) -> dict[str, Any]:
    """Return the acceptance-versus-blind gap of what was really shown, in figures and in words."""
    tasks = [row for row in rows if row.scope == STRATUM]
    seen, blind = (add_up(row for row in tasks if row.kind == kind) for kind in (Evidence.ASSISTED, Evidence.BLIND))
    gap = Gap(seen["accepted"], seen["tasks"], blind["accepted"], blind["tasks"]).as_dict()
    advice = ADVICE["gap"] if gap["detected"] else "Nothing to do: no influence of prelabels has been shown."
    return gap | {"sentence": describe_gap(gap), "advice": advice}


def _evidence(
    session: Session, project: ProjectRecord, model: ModelRecord, version: VersionRecord | None, *, n_min: int
) -> dict[str, Any]:
    cells = load_cells(session, project.id, model_id=model.id)
    counts = count_evidence(cells)
    excluded: dict[str, int] = {}
    for cell in load_cells(session, project.id, model_id=model.id, excluded=True):
        if cell.n:
            excluded[cell.exclusion] = excluded.get(cell.exclusion, 0) + cell.tasks
    clean = sum(n for kind, n in counts.items() if kind != Evidence.ASSISTED)
    details = {} if version is None else version.details
    guarantee = "none" if version is None else version.guarantee
    missing = max(0, n_min - clean)
    sentences = {
        "own": "Nothing to do: thresholds rest on labels made without a prelabel, or on a file you vouch for.",
        "assisted": f"Label {missing} more tasks without a prelabel (blank tasks) to make the guarantee your own.",
        "none": f"Label {missing} more tasks: until then sets are borrowed from the starter calibration, or open.",
    }
    return {
        "state": guarantee,
        "pools": details.get("guarantees", {}),
        "counts": counts,
        "excluded": excluded,
        "needed": missing,
        "effective_n": details.get("effective_n"),
        "advice": sentences.get(guarantee, sentences["none"]),
    }


def _drift(session: Session, project: ProjectRecord, model: ModelRecord) -> dict[str, Any]:
    monitors = list_monitors(session, project.id, model_id=model.id, kind=DRIFT)
    languages = len(monitors) - 1
    watchers = 1 if languages <= 1 else 1 + languages
    shown = [each for each in monitors if each.stratum == "" or watchers > 1]
    return {
        "alarm_at": ALARM * watchers,
        "martingales": [
            {
                "stratum": each.stratum,
                "value": each.value,
                "highest_log": _peak(each),
                "labels": each.consumed,
            }
            for each in shown
        ],
        # Once reached, it holds for this model: earlier thresholds promise nothing for texts that have changed.
        "advice": ADVICE[DRIFT]
        if any(_peak(each) >= math.log(ALARM * watchers) for each in shown)
        else "Nothing to do.",
    }


def _peak(monitor: MonitorRecord) -> float:
    return float.fromhex(json.loads(monitor.state)["peak"])


def _skips(session: Session, project: ProjectRecord, model: ModelRecord) -> dict[str, Any]:
    waiting = list(skipped_tasks(session, project.id, model_id=model.id))
    labelled = sum(cell.tasks for cell in load_cells(session, project.id, model_id=model.id))
    advice = "Nothing to do."
    if waiting:
        advice = (
            "Open these tasks again and label them: they were drawn for calibration, and leaving them out makes the "
            "promise one about tasks that people label."
        )
    tasks = [task.external_id for task in waiting[:_MOST_SKIPS]]
    return skip_share(len(waiting), labelled) | {"tasks": tasks, "advice": advice}


def _adaptive(
    session: Session, project: ProjectRecord, model: ModelRecord, version: VersionRecord | None
) -> dict[str, Any]:
    record = load_monitor(session, project.id, model_id=model.id, kind=LEVEL)
    on = is_adaptive(session, project.id)
    serving = None if version is None else version.details.get("adaptive")
    return {
        "on": on,
        "next_level": None if record is None else record.value,
        "audited": 0 if record is None else record.consumed,
        "serving": serving,
        "advice": ADAPTIVE_REMARK
        if on
        else "The level is fixed. `surespan recalibrate --adaptive` lets it follow the misses.",
    }


def _days(session: Session, project: ProjectRecord, model: ModelRecord, since: date | None) -> list[dict[str, Any]]:
    rows = count_days(session, project.id, model_id=model.id, since=since or date.min)
    return [
        {"day": day.isoformat(), "kind": kind, "judged": total, "covered": covered}
        for day, kind, total, covered in rows[-1000:]
    ]


def alarm_list(session: Session, project_id: int) -> list[dict[str, Any]]:
    """Return the newest alarms, each with what to do."""
    return [
        {
            "id": each.id,
            "kind": each.kind,
            "stratum": each.stratum,
            "value": each.value,
            "message": each.message,
            "raised_at": each.raised_at.isoformat(),
            "acknowledged": each.acknowledged_at is not None,
            "advice": ADVICE.get(each.kind, ""),
        }
        for each in list_alarms(session, project_id)
    ]
