"""Refit: stored calibration rows to a new immutable threshold version, active from its transaction on (METHODS 8.5).

When to refit is decided by counts and time, never by thresholds, sizes or alarms; what a refit makes depends on the
rows and the settings alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.calibration.adaptive import level_of
from backend.calibration.comparison import (
    SAMPLED,
    PoolChange,
    Summaries,
    compare,
    expected_sizes,
    pool_guarantees,
    summarise,
)
from backend.calibration.evidence import (
    Evidence,
    Policy,
    choose_evidence,
    count_evidence,
    gap_of,
    is_clean,
    row_weights,
    worth,
)
from backend.calibration.flag_levels import flag_levels
from backend.calibration.schedule import count_rows, note_unchanged
from backend.domain.flag_rule import RiskRule
from backend.domain.guarantee import Guarantee
from backend.domain.records import Cell, JobRecord, ModelRecord, ProjectRecord, VersionRecord
from backend.errors import StoreConflict
from backend.jobs.context import WorkContext
from backend.jobs.kinds import queue_publish, queue_second_looks
from backend.prediction.calibration import Calibration, calibration_of, full_name
from backend.prediction.starter import starter_calibration
from backend.store import Store
from backend.store.bulk import EntityTable, ErrorTable, ScoreTable, load_entities, load_errors, load_scores
from backend.store.calibration import count_first, head_revision, load_cells
from backend.store.jobs import heartbeat
from backend.store.served import recent_lists
from backend.store.skips import SkippedTask, skipped_tasks
from backend.store.tables import ActiveVersion
from backend.store.thresholds import active_version, write_version
from backend.tagger.blank import BLANK_REASON, BlankTagger
from conformal.labels import OUTSIDE
from conformal.monitor.coverage import clopper_pearson
from conformal.rows import EntityRows, TaskRows
from conformal.scores import Method, Ranks
from conformal.strata import EMPTY, SEEN, Strata
from conformal.subsequence import SpanScores
from conformal.thresholds import Thresholds, calibrate

RESTATE = "restate"  # skipped tasks stay out, and their share is shown: the promise is for tasks people label
INFINITE = "infinite"  # they count as labels out of reach: the promise is for all tasks, with larger sets
_ATTEMPTS = 4


@dataclass(frozen=True)
class Refit:
    """What a refit did: the version that serves now, the one before, and what changed between them."""

    version: VersionRecord
    previous: VersionRecord | None
    changes: tuple[PoolChange, ...]

    @property
    def changed(self) -> bool:
        """Whether a new version was made; equal rows and settings give equal bytes and no new version."""
        return self.previous is None or self.previous.id != self.version.id


@dataclass(frozen=True)
class _Inputs:
    """What a refit reads, in one snapshot."""

    revision: int
    cells: list[Cell]
    kinds: frozenset[str]
    scores: ScoreTable
    entities: EntityTable
    errors: ErrorTable  # empty where no risk is controlled
    skipped: list[SkippedTask]
    excluded: dict[str, int]
    accepted: dict[int, int]
    served: list[tuple[str, bytes]]
    previous: VersionRecord | None


def refit(
    store: Store,
    project: ProjectRecord,
    *,
    model: ModelRecord,
    alpha: str,
    method: Method | None = None,
    strata: Strata | None = None,
    n_min: int = 100,
    policy: str = Policy.AUTO,
    skipped: str = RESTATE,
    flags: RiskRule | None = None,
    starter: Calibration | None = None,
    adaptive: dict[str, Any] | None = None,
    reason: str = "refit",
    within: Callable[[Session], object] | None = None,
) -> Refit:
    """Fit thresholds on the project's rows under a model, and serve them from now on.

    Depends on the rows and the settings alone. Rows are read in one consistent snapshot; the version names the
    revision it saw, so that it can be rebuilt. Excluded rows never enter. Fitting on no row is allowed; where a pool
    has too few, sets are borrowed from `starter` if it has enough, and open otherwise (METHODS 8.2).

    Args:
        policy: which kinds of rows may be used (`SURESPAN_EVIDENCE`).
        skipped: what unresolved skips count as, `restate` or `infinite` (METHODS 8.3).
        flags: the risk that flags are to control; None flags every span with several labels.
        starter: what serves where own labels are too few; only the report depends on it.
        adaptive: what `adaptive.level_of` says about alpha, kept with the version.
        within: called in the transaction that writes the version; whatever it raises undoes it.

    Raises:
        StoreConflict: when other processes kept changing the active version.
    """
    chosen = method or Method()
    for _ in range(_ATTEMPTS):
        with store.read() as session:
            inputs = _read(
                session, project, model, n_min=n_min, policy=policy, skipped=skipped, with_errors=flags is not None
            )
        tasks, spans = library_rows(inputs.scores, inputs.entities)
        if skipped == INFINITE:
            tasks = _with_skipped(tasks, inputs.skipped, kinds=inputs.kinds, strata=strata or Strata())
        thresholds = calibrate(
            tasks, spans, classes=model.classes, method=chosen, strata=strata, n_min=n_min, allow_empty=True
        )
        content = thresholds.to_bytes()
        waiting = inputs.skipped if skipped == INFINITE else []
        risk = None if flags is None else flag_levels(inputs.errors, flags, n_min=n_min, skipped=waiting)
        guarantee = _guarantee(thresholds, inputs.kinds, rows=tasks.task_count)
        previous = inputs.previous
        levels = None if risk is None else risk.to_dict()
        same = previous is not None and (
            (previous.content, previous.alpha, previous.guarantee, previous.details.get("risk"))
            == (content, alpha, guarantee.value, levels)
        )
        if previous is not None and same:
            unchanged = partial(
                note_unchanged,
                project_id=project.id,
                model_id=model.id,
                revision=inputs.revision,
                rows=count_rows(inputs.cells),
            )
            store.run(unchanged)
            return Refit(previous, previous, ())
        after = Calibration(thresholds, guarantee, 0, starter, risk=risk)
        summaries = summarise(thresholds, alpha)
        details = _details(inputs, after, n_min=n_min, rows=tasks.task_count, policy=policy, skipped=skipped)
        if adaptive is not None:
            details["adaptive"] = adaptive
        if levels is not None:
            details["risk"] = levels
        write = partial(
            write_version,
            project_id=project.id,
            model_id=model.id,
            alpha=alpha,
            method=full_name(chosen),
            evidence="+".join(sorted(inputs.kinds)) or "none",
            guarantee=guarantee.value,
            input_revision=inputs.revision,
            content=content,
            thresholds=list(summaries.values()),
            n=tasks.task_count,
            details=details,
            reason=reason,
        )
        try:
            version = store.run(
                partial(_activate, project=project, model=model, previous=previous, write=write, within=within)
            )
        except _Overtaken:  # also by this very version, when the answer to its commit was lost
            continue
        return Refit(version, previous, _changes(inputs, summaries, after, alpha, details["guarantees"]))
    raise StoreConflict(f"project {project.uid}: expected no other refit meanwhile, got {_ATTEMPTS}: try again")


def run_refit(context: WorkContext, job: JobRecord) -> dict[str, Any]:
    """Do a job of kind `refit`: fit the project's thresholds again and ask for their publication.

    The version, the word that the job's lease still holds and the job `publish` are one transaction: a worker that
    slept through its lease writes nothing. Where the model knows no label of the project there is nothing to fit.
    """
    settings = context.settings
    project = context.project_of(job)
    model, tagger = context.model_of(project)
    if isinstance(tagger, BlankTagger):
        return {"skipped": BLANK_REASON}
    method = Method(settings.method)
    with context.store.read() as session:
        alpha, adaptive = level_of(session, project, model_id=model.id, alpha=project.alpha or settings.alpha)
    fitted = refit(
        context.store,
        project,
        model=model,
        alpha=alpha,
        adaptive=adaptive,
        method=method,
        n_min=settings.n_min,
        policy=settings.evidence,
        skipped=settings.skipped,
        flags=settings.risk_rule,
        starter=starter_calibration(
            tagger, context.starter_directory(project), method=method, n_min=settings.n_min, flags=settings.risk_rule
        ),
        reason=str(job.payload.get("reason", "refit")),
        within=lambda session: _hand_over(session, project, job),
    )
    return {
        "threshold_version": fitted.version.id,
        "previous_version": None if fitted.previous is None else fitted.previous.id,
        "changed": fitted.changed,
        "guarantee": fitted.version.guarantee,
        "rows": fitted.version.details.get("rows"),
    }


def _hand_over(session: Session, project: ProjectRecord, job: JobRecord) -> None:
    heartbeat(session, job)
    queue_publish(session, project)
    queue_second_looks(session, project)


class _Overtaken(StoreConflict):
    """Another process activated a version after this refit had read its rows."""


def _activate(
    session: Session,
    *,
    project: ProjectRecord,
    model: ModelRecord,
    previous: VersionRecord | None,
    write: Callable[[Session], VersionRecord],
    within: Callable[[Session], object] | None,
) -> VersionRecord:
    _refuse_newer(session, project, model, previous)
    version = write(session)
    if within is not None:
        within(session)
    return version


def _refuse_newer(session: Session, project: ProjectRecord, model: ModelRecord, previous: VersionRecord | None) -> None:
    active = session.execute(
        sa.select(ActiveVersion.version_id).filter_by(project_id=project.id, model_id=model.id).with_for_update()
    ).scalar_one_or_none()
    if active != (None if previous is None else previous.id):
        raise _Overtaken("another refit was quicker")


def _read(
    session: Session,
    project: ProjectRecord,
    model: ModelRecord,
    *,
    n_min: int,
    policy: str,
    skipped: str,
    with_errors: bool,
) -> _Inputs:
    revision = head_revision(session, project.id, model_id=model.id)
    cells = load_cells(session, project.id, model_id=model.id)  # excluded rows have cells of their own
    waiting = list(skipped_tasks(session, project.id, model_id=model.id))
    counts = Counter(count_evidence(cells))
    if skipped == INFINITE:
        counts.update(_kind(task) for task in waiting)
    kinds = choose_evidence(counts, n_min=n_min, policy=policy)
    used = [cell for cell in cells if cell.evidence in kinds and cell.n]
    excluded: Counter[str] = Counter()
    for cell in load_cells(session, project.id, model_id=model.id, excluded=True):
        excluded[cell.exclusion] += cell.tasks
    scores = load_scores(session, used)
    clean = [cell for cell in cells if is_clean(cell.evidence) and cell.n and cell.stratum not in (EMPTY, SEEN)]
    return _Inputs(
        revision=revision,
        cells=cells,
        kinds=kinds,
        scores=scores,
        entities=load_entities(session, used, labels=(*model.classes, OUTSIDE)),
        errors=load_errors(session, clean if with_errors else []),
        skipped=waiting,
        excluded=dict(excluded),
        accepted=count_first(session, [cell for cell in cells if cell not in used]) | _firsts(scores),
        served=recent_lists(session, project.id, model_id=model.id, limit=SAMPLED),
        previous=active_version(session, project.id, model_id=model.id),
    )


def _firsts(scores: ScoreTable) -> dict[int, int]:
    """Return what `count_first` would, from scores that are read already."""
    others = np.unique(scores.task_ids[scores.rank > 1.0])
    accepted = (scores.units == 0) & ~np.isin(scores.task_ids, others)
    return {cell.id: int(accepted[scores.rows(i)].sum()) for i, cell in enumerate(scores.cells)}


def _kind(task: SkippedTask) -> str:
    return (Evidence.BLIND if task.draw.blind else Evidence.ASSISTED).value


def _guarantee(thresholds: Thresholds, kinds: frozenset[str], *, rows: int) -> Guarantee:
    """Return what sets of the pools with enough rows say; none has enough: nothing of this version is promised."""
    enough = any(thresholds.pool(cell).pool.calibrated for cell in thresholds.cells)
    return worth(kinds, rows=rows) if enough else Guarantee.NONE


def _details(
    inputs: _Inputs, after: Calibration, *, n_min: int, rows: int, policy: str, skipped: str
) -> dict[str, Any]:
    thresholds = after.thresholds
    details: dict[str, Any] = {
        "n_min": n_min,
        "rows": rows,
        "policy": policy,
        "counts": count_evidence(inputs.cells),
        "excluded": inputs.excluded,
        "guarantees": pool_guarantees(after),
        "gap": gap_of(inputs.cells, inputs.accepted).as_dict(),
        "skips": skip_share(len(inputs.skipped), count_rows(inputs.cells)) | {"counted_as": skipped},
        "fallback": None if after.fallback is None else after.fallback.guarantee.value,
    }
    if thresholds.weights:
        details["effective_n"] = {
            thresholds.pool(cell).pool.name: round(thresholds.effective_n(cell), 1) for cell in thresholds.cells
        }
    return details


def skip_share(skipped: int, labelled: int) -> dict[str, Any]:
    """Return the share of tasks that people skipped among those drawn to calibrate, with its pointwise interval.

    >>> skip_share(2, 98)["share"]
    0.02
    """
    total = skipped + labelled
    return {
        "unresolved": skipped,
        "labelled": labelled,
        "share": skipped / total if total else None,
        "interval_95": list(clopper_pearson(skipped, total)) if total else None,
    }


def _changes(
    inputs: _Inputs, summaries: Summaries, after: Calibration, alpha: str, guarantees: dict[str, str]
) -> tuple[PoolChange, ...]:
    previous = inputs.previous
    if previous is None:
        sizes = expected_sizes(inputs.served, after.fallback, after, alphas=(alpha, alpha))
        return compare({}, summaries, guarantees=guarantees, sizes=sizes)
    before = calibration_of(previous, fallback=after.fallback)
    sizes = expected_sizes(inputs.served, before, after, alphas=(previous.alpha, alpha))
    return compare(summarise(before.thresholds, previous.alpha), summaries, guarantees=guarantees, sizes=sizes)


def library_rows(scores: ScoreTable, entities: EntityTable) -> tuple[TaskRows, EntityRows]:
    """Return stored columns as the library's rows, by code and not by name: a million of them take no loop here."""
    strata = [cell.stratum for cell in scores.cells]
    names = tuple(sorted(set(strata)))
    codes = np.repeat(np.array([names.index(name) for name in strata], np.int64), np.diff(scores.offsets))
    ranks = Ranks(log_probability=-scores.nll, rank=_whole(scores.rank), cumulative=scores.cumulative)
    several = bool(np.any(scores.units > 0))
    weight = row_weights(scores.weight, scores.units == 0)
    tasks = TaskRows(names, codes, ranks, task=scores.task_ids, weight=weight, unit=scores.units if several else None)
    scored = SpanScores(
        probability=entities.probability, cumulative=entities.cumulative, class_rank=_whole(entities.class_rank)
    )
    spans = EntityRows(
        task=entities.task_ids,
        names=entities.labels,
        codes=entities.codes,
        scored=scored,
        rank=_whole(entities.rank),
        unit=entities.units if several else None,
    )
    return tasks, spans


def _with_skipped(tasks: TaskRows, skipped: list[SkippedTask], *, kinds: frozenset[str], strata: Strata) -> TaskRows:
    """Add the tasks that people skipped, as labels out of reach (METHODS 8.3)."""
    known = [
        (task, unit, cell) for task in skipped if _kind(task) in kinds for unit, cell in enumerate(_cells(task, strata))
    ]
    if not known:
        return tasks
    names = tuple(sorted({*tasks.names, *(cell for _, _, cell in known)}))
    code_of = {name: i for i, name in enumerate(names)}
    codes = np.array([code_of[name] for name in tasks.names], np.int64)[tasks.codes]
    count, ranks = len(known), tasks.ranks
    weight = np.ones(len(tasks)) if tasks.weight is None else tasks.weight
    own = np.zeros(len(tasks), np.int64) if tasks.unit is None else tasks.unit
    units = np.concatenate([own, np.array([unit for _, unit, _ in known], np.int64)])
    return TaskRows(
        names,
        np.concatenate([codes, np.array([code_of[cell] for _, _, cell in known], np.int64)]),
        Ranks(
            log_probability=np.concatenate([ranks.log_probability, np.full(count, -np.inf)]),
            rank=np.concatenate([ranks.rank, np.zeros(count, np.int64)]),
            cumulative=np.concatenate([ranks.cumulative, np.full(count, np.inf)]),
        ),
        task=np.concatenate([tasks.numbers, np.array([task.task_id for task, _, _ in known], np.int64)]),
        weight=np.concatenate([weight, np.ones(count)]),
        unit=units if np.any(units > 0) else None,
    )


def _cells(task: SkippedTask, strata: Strata) -> tuple[str, ...]:
    """Return the strata of a skipped task's units; by its length alone where no set was made for it."""
    if task.strata:
        return task.strata
    if task.length is None or (task.length and not task.language):
        return ()
    return (strata.cell(length=task.length, language=task.language),)


def _whole(values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Ranks as the library has them: 0 stands for "not found", which the store keeps as +inf."""
    return np.where(np.isfinite(values), values, 0.0).astype(np.int64)
