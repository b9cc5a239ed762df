"""The monitors: every scored label is judged against what was shown, and audit rows are watched for drift.

One call, `Monitor.watch`, takes up where the last one ended. It works in pages; a page is one transaction that moves a
watermark over the calibration rows of (project, model), judges the labels of the page, feeds the martingales and
raises alarms. So each label counts once, whoever calls and whenever a process dies. Alarms tell people something;
nothing here ever causes or prevents a refit (METHODS 8.5).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cachetools import LRUCache
from sqlalchemy.orm import Session

from backend.calibration.adaptive import follow_misses, was_adaptive
from backend.calibration.evidence import Evidence
from backend.domain.records import LabelRecord, ModelRecord, MonitorRecord, ProjectRecord, TextSpan, VersionRecord
from backend.monitoring.alarms import find_alarms
from backend.monitoring.drift import EVERYTHING, DriftWatch, describe_drift, language_of, wealth
from backend.monitoring.set_coverage import LabelledUnit, judge_set
from backend.prediction.calibration import Calibration, known_method, version_method
from backend.prediction.versions import Versions
from backend.store import Store
from backend.store.calibration import lock_rows
from backend.store.judgements import (
    CoverageRow,
    Judged,
    coverage_rows,
    kind_of,
    record_judgement,
    retract_judgement,
)
from backend.store.labels import labels_of
from backend.store.monitor import (
    DRIFT,
    FreshRow,
    MonitorOvertaken,
    consume_rows,
    consumed_tasks,
    load_monitor,
    raise_alarm,
    rows_after,
    save_monitor,
)
from backend.store.rows import row_errors, task_entities, task_units
from backend.store.served import served_before
from backend.store.thresholds import adaptive_versions
from conformal.errors import InvalidThresholds
from conformal.scores import Method, hash_u
from conformal.strata import EMPTY

PAGE = 64
WATCH = "watch"
_KEPT_STREAMS = 64


@dataclass(frozen=True)
class Watched:
    """What a call of `watch` did."""

    looked: int = 0
    judged: int = 0
    consumed: int = 0
    alarms: tuple[str, ...] = ()


class Monitor:
    """Watches the projects of one database; keep one per worker, because it remembers sorted scores.

    Args:
        method, alpha: those of the settings, for sets of the starter.
        on_drift: called when an alarm of drift is new, in the transaction that raises it: both happen or neither.
    """

    def __init__(
        self,
        store: Store,
        *,
        method: str = "nc1",
        alpha: str = "0.05",
        on_drift: Callable[[Session, ProjectRecord], object] | None = None,
    ) -> None:
        self._store, self._method, self._alpha, self._on_drift = store, method, alpha, on_drift
        self._versions = Versions()
        self._starters: LRUCache[tuple[int, Method], Calibration] = LRUCache(_KEPT_STREAMS)
        self._streams: LRUCache[tuple[int, int], DriftWatch] = LRUCache(_KEPT_STREAMS)
        self._fed: tuple[tuple[int, int], DriftWatch] | None = None

    def watch(
        self,
        project: ProjectRecord,
        *,
        model: ModelRecord,
        names: Mapping[str, str] | None = None,
        starter: Callable[[Method], Calibration] | None = None,
    ) -> Watched:
        """Look at every row that was added since the last call.

        Args:
            names: the class that each label of the project stands for, where they differ.
            starter: makes what serves where own labels are too few, by a method, for the span sets of such tasks.
        """
        looked = judged = consumed = 0
        alarms: list[str] = []
        given = None if starter is None else lambda method: self._starter(model, method, starter)
        while True:
            self._fed = None
            try:
                page = self._store.run(lambda session: self._page(session, project, model, names or {}, given))
            except MonitorOvertaken:
                break  # another worker is at it
            self._keep_streams()
            looked, judged, consumed = looked + page.looked, judged + page.judged, consumed + page.consumed
            alarms += page.alarms
            if page.looked < PAGE:
                break
        return Watched(looked, judged, consumed, tuple(alarms))

    def _page(
        self,
        session: Session,
        project: ProjectRecord,
        model: ModelRecord,
        names: Mapping[str, str],
        starter: Callable[[Method], Calibration] | None,
    ) -> Watched:
        # Labels change under this lock, so what is judged here is what counts when it is judged.
        lock_rows(session, project.id, model_id=model.id)
        before = load_monitor(session, project.id, model_id=model.id, kind=WATCH)
        watermark = 0 if before is None else int(json.loads(before.state)["revision"])
        rows = rows_after(session, project.id, model_id=model.id, revision=watermark, limit=PAGE)
        if not rows:
            return Watched()
        labels = labels_of(session, [row.task_id for row in rows])
        judged = 0
        covered_by_task: dict[int, bool | None] = {}
        for row in rows:
            label = labels.get(row.task_id)
            if label is not None and label.revision == row.label_revision:
                judgement = self._judge(session, project, model, row, label, names, starter)
                if judgement is not None:
                    judged += record_judgement(session, judgement)
                    covered_by_task[row.task_id] = judgement.covered
        fresh = self._unconsumed(session, project, model, rows)
        alarms = self._feed(session, project, model, fresh)
        outcomes = [covered for row in fresh if (covered := covered_by_task.get(row.task_id)) is not None]
        target = project.alpha or self._alpha
        follow_misses(session, project.id, model_id=model.id, alpha=target, outcomes=outcomes)
        if judged:
            alarms += _raise_all(session, project.id, model.id)
        state = json.dumps({"revision": rows[-1].revision}).encode()
        known = (0, 0) if before is None else (before.revision, before.consumed)
        record = MonitorRecord(WATCH, EVERYTHING, known[0], known[1] + len(rows), 0.0, state)
        save_monitor(session, project.id, model_id=model.id, monitor=record)
        return Watched(len(rows), judged, len(fresh), tuple(alarms))

    def _judge(
        self,
        session: Session,
        project: ProjectRecord,
        model: ModelRecord,
        row: FreshRow,
        label: LabelRecord,
        names: Mapping[str, str],
        starter: Callable[[Method], Calibration] | None,
    ) -> Judged | None:
        annotation = label.annotation
        at = None if annotation is None else annotation.created_at or annotation.updated_at
        served = None if at is None else served_before(session, row.task_id, at=at, model_id=model.id)
        if served is None or label.spans is None:
            retract_judgement(session, row.task_id, model_id=model.id)
            return None
        version = None if served.version_id is None else self._versions.record(session, served.version_id)
        alpha = served.alpha or (None if version is None else version.alpha) or project.alpha or self._alpha
        units = task_units(session, row.task_id, model_id=model.id)
        entities = task_entities(session, row.task_id, model_id=model.id)
        finding = judge_set(
            served,
            [LabelledUnit(unit.stratum, unit.scores) for unit in units],
            draw=lambda pool: hash_u("", project.uid, row.external_id, pool, "judged"),
            spans=[TextSpan(start, end, names.get(said, said)) for start, end, said in label.spans],
            entities=[entity for unit in units for entity in entities.get(unit.id, ())],
            method=self._method if version is None else version.method,
            calibration=self._calibration(version, starter),
            alpha=alpha,
            errors=row_errors(session, units[0]) if units else None,
        )
        first, *others = finding.drawn
        return Judged(
            task_id=row.task_id,
            model_id=model.id,
            project_id=project.id,
            label_revision=row.label_revision,
            version_id=served.version_id or 0,
            day=at.date() if at is not None else served.served_at.date(),
            kind=kind_of(row.evidence, row.exclusion),
            stratum=first.stratum,
            pool=first.pool,
            n=first.n,
            alpha=alpha,
            guarantee=first.guarantee,
            covered=first.covered,
            shown=finding.shown,
            accepted=finding.accepted,
            is_open=first.is_open,
            size=first.size,
            classes=finding.classes,
            flags=finding.flags,
            units=finding.units,
            whole=finding.whole,
            others=tuple(others),
            risk=finding.risk,
        )

    def _starter(self, model: ModelRecord, method: Method, make: Callable[[Method], Calibration]) -> Calibration:
        key = (model.id, method)
        if key not in self._starters:
            self._starters[key] = make(method)
        return self._starters[key]

    def _calibration(
        self, version: VersionRecord | None, starter: Callable[[Method], Calibration] | None
    ) -> Calibration | None:
        known = version is None or known_method(version.method) is not None
        method = version_method(version) if version is not None and known else Method(self._method)
        fallback = None if starter is None else starter(method)
        if version is None:
            return fallback
        try:
            return self._versions.calibration(version, fallback=fallback)
        except InvalidThresholds:  # of a later release, after a way back: its sets are judged, its spans are not
            return None

    def _unconsumed(
        self, session: Session, project: ProjectRecord, model: ModelRecord, rows: Sequence[FreshRow]
    ) -> list[FreshRow]:
        """Return the blind rows of a page that were never consumed, in hash order (METHODS 8.7)."""
        audit = [
            row
            for row in rows
            if row.evidence == Evidence.BLIND
            and not row.exclusion
            and row.random_order is not None
            and row.stratum != EMPTY
        ]
        known = consumed_tasks(session, project.id, model_id=model.id, task_ids=[row.task_id for row in audit])
        fresh = [row for row in audit if row.task_id not in known]
        return sorted(fresh, key=lambda row: (row.random_order, row.task_id))

    def _feed(
        self, session: Session, project: ProjectRecord, model: ModelRecord, rows: Sequence[FreshRow]
    ) -> list[str]:
        if not rows:
            return []
        streams = self._loaded(session, project, model)
        alarms: list[str] = []
        first = streams.consumed
        for row in rows:
            v = hash_u("", project.uid, row.external_id, "martingale")
            alarms += streams.update(language_of(row.stratum), row.scores.nll, v=v)
        consume_rows(
            session,
            project.id,
            model_id=model.id,
            first=first,
            rows=[(row.task_id, row.stratum, row.scores.nll) for row in rows],
        )
        for name, record in streams.records():
            saved = save_monitor(session, project.id, model_id=model.id, monitor=record)
            streams.revisions[name] = saved.revision
        self._fed = ((project.id, model.id), streams)
        # Those that stand still are raised too: one that somebody has seen comes back after a while.
        for name in dict.fromkeys([*alarms, *streams.standing()]):
            jumper = streams.jumpers[name]
            raise_alarm(
                session,
                project.id,
                model_id=model.id,
                kind=DRIFT,
                stratum=name,
                value=wealth(jumper.peak),
                message=describe_drift(name, jumper, watchers=len(streams.jumpers)),
            )
        if alarms and self._on_drift is not None:
            self._on_drift(session, project)
        return [f"{DRIFT}:{name}" for name in dict.fromkeys(alarms)]

    def _loaded(self, session: Session, project: ProjectRecord, model: ModelRecord) -> DriftWatch:
        """Return the sorted scores as the database has them; taken out of memory until the transaction is through."""
        known = load_monitor(session, project.id, model_id=model.id, kind=DRIFT)
        held = self._streams.pop((project.id, model.id), None)
        if held is not None and held.revisions.get(EVERYTHING, 0) == (0 if known is None else known.revision):
            return held
        return DriftWatch.load(session, project.id, model.id)

    def _keep_streams(self) -> None:
        if self._fed is not None:
            key, streams = self._fed
            self._streams[key] = streams


def _adaptive_versions(session: Session, project_id: int, rows: Sequence[CoverageRow]) -> frozenset[int]:
    if not was_adaptive(session, project_id):
        return frozenset()
    return adaptive_versions(session, {row.version_id for row in rows})


def _raise_all(session: Session, project_id: int, model_id: int) -> list[str]:
    rows = coverage_rows(session, project_id, model_id=model_id)
    raised = find_alarms(rows, adaptive=_adaptive_versions(session, project_id, rows))
    for each in raised:
        raise_alarm(
            session,
            project_id,
            model_id=model_id,
            kind=each.kind,
            stratum=each.stratum,
            value=each.value,
            message=each.message,
        )
    return [f"{each.kind}:{each.stratum}" for each in raised]
