"""Refit: stored calibration rows to a new immutable threshold version, active from its transaction on (METHODS 8.5)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from backend.evidence import choose_evidence, worth
from backend.predictor import Calibration, Guarantee
from backend.store import Store
from backend.store.bulk import EntityTable, ScoreTable, load_entities, load_scores
from backend.store.calibration import head_revision, load_cells
from backend.store.thresholds import active_version, write_version
from backend.store.types import ModelRecord, ProjectRecord, ThresholdRow, VersionRecord
from conformal.labels import OUTSIDE
from conformal.rows import EntityRows, TaskRows
from conformal.scores import Method, Ranks, boundary_u
from conformal.strata import Strata
from conformal.subsequence import SpanScores
from conformal.thresholds import Thresholds, calibrate


@dataclass(frozen=True)
class PoolChange:
    """One pool (or class) before and after a refit; `before` is None where it is new."""

    kind: str
    name: str
    n_before: int | None
    n_after: int
    tau_before: float | None
    tau_after: float


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


def refit(
    store: Store,
    project: ProjectRecord,
    *,
    model: ModelRecord,
    alpha: str,
    method: Method | None = None,
    strata: Strata | None = None,
    n_min: int = 100,
    secret: str = "",
    reason: str = "refit",
) -> Refit:
    """Fit thresholds on the project's rows under a model, and serve them from now on.

    Depends on the rows and the settings alone. Rows are read in one consistent snapshot; the version names the
    revision it saw, so that it can be rebuilt. Fitting on no row is allowed and gives open sets.
    """
    chosen = method or Method()
    with store.read() as session:
        revision = head_revision(session, project.id, model_id=model.id)
        cells = load_cells(session, project.id, model_id=model.id)
        counts: Counter[str] = Counter()
        for cell in cells:
            counts[cell.evidence] += cell.n
        kinds = choose_evidence(dict(counts), n_min=n_min)
        used = [cell for cell in cells if cell.evidence in kinds and cell.n]
        scores, entities = load_scores(session, used), load_entities(session, used)
        previous = active_version(session, project.id, model_id=model.id)
    tasks, spans = _rows(scores, entities, method=chosen, project=project.uid, secret=secret)
    thresholds = calibrate(
        tasks, spans, classes=model.classes, method=chosen, strata=strata, n_min=n_min, allow_empty=True
    )
    content = thresholds.to_bytes()
    guarantee = worth(kinds, rows=len(tasks))
    before = {} if previous is None else _summaries(Thresholds.from_bytes(previous.content), previous.alpha)
    after = _summaries(thresholds, alpha)
    same = previous is not None and (previous.content, previous.alpha, previous.guarantee) == (
        content,
        alpha,
        guarantee.value,
    )
    if previous is not None and same:
        return Refit(previous, previous, ())
    with store.write() as session:
        version = write_version(
            session,
            project.id,
            model_id=model.id,
            alpha=alpha,
            method=chosen.name,
            evidence="+".join(sorted(kinds)) or "none",
            guarantee=guarantee.value,
            input_revision=revision,
            content=content,
            thresholds=list(after.values()),
            details={"n_min": n_min, "rows": len(tasks)},
            reason=reason,
        )
    return Refit(version, previous, _changes(before, after))


def calibration_of(version: VersionRecord) -> Calibration:
    """Return a stored version as the predictor uses it."""
    return Calibration(Thresholds.from_bytes(version.content), Guarantee(version.guarantee), version.id)


def _rows(
    scores: ScoreTable, entities: EntityTable, *, method: Method, project: str, secret: str
) -> tuple[TaskRows, EntityRows]:
    """Return stored columns as the library's rows, by code and not by name: a million of them take no loop here."""
    strata = [cell.stratum for cell in scores.cells]
    names = tuple(sorted(set(strata)))
    codes = np.repeat(np.array([names.index(name) for name in strata], np.int64), np.diff(scores.offsets))
    ranks = Ranks(-scores.nll, _whole(scores.rank), scores.cumulative, None)
    draws = None
    if method.needs_u:
        draws = np.array([boundary_u(secret, project, task) for task in scores.task_ids.tolist()])
    tasks = TaskRows(names, codes, ranks, draws, task=scores.task_ids)
    scored = SpanScores(entities.probability, entities.cumulative, _whole(entities.place))
    return tasks, EntityRows(entities.task_ids, entities.labels, entities.codes, scored, _whole(entities.rank))


def _whole(values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Ranks as the library has them: 0 stands for "not found", which the store keeps as +inf."""
    return np.where(np.isfinite(values), values, 0.0).astype(np.int64)


def _summaries(thresholds: Thresholds, alpha: str) -> dict[tuple[str, str], ThresholdRow]:
    """Return one row per pool that answers for a known stratum, and one per class."""
    rows: dict[tuple[str, str], ThresholdRow] = {}
    for cell in thresholds.cells:
        pool = thresholds.pool(cell)
        infinite = int(np.isinf(pool.table.scores).sum())
        tau = thresholds.threshold(cell, alpha)
        rows["pool", pool.pool.name] = ThresholdRow("pool", pool.pool.name, pool.n, infinite, tau)
    for label in (*thresholds.classes, OUTSIDE):
        found = thresholds.label_pool(label)
        infinite = int(np.isinf(found.table.scores).sum())
        tau = thresholds.label_threshold(label, alpha) if found.calibrated else np.inf
        rows["class", label] = ThresholdRow("class", label, found.n, infinite, tau)
    return rows


def _changes(
    before: dict[tuple[str, str], ThresholdRow], after: dict[tuple[str, str], ThresholdRow]
) -> tuple[PoolChange, ...]:
    return tuple(
        PoolChange(
            kind,
            name,
            before[kind, name].n if (kind, name) in before else None,
            row.n,
            before[kind, name].tau if (kind, name) in before else None,
            row.tau,
        )
        for (kind, name), row in after.items()
    )
