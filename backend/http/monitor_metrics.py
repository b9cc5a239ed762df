"""What the monitors know, as metrics of the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from sqlalchemy.orm import Session

from backend.domain.records import ModelRecord, ProjectRecord
from backend.store.judgements import STRATUM, add_up, coverage_rows
from backend.store.monitor import COVERAGE, DRIFT, GAP, list_alarms, list_monitors


class MonitorFamilies:
    """Collects the monitors of projects one by one; `families` returns what was collected."""

    def __init__(self) -> None:
        by_stratum = ["project", "stratum", "kind"]
        self._covered = GaugeMetricFamily(
            "surespan_live_coverage",
            "Share of labelled tasks whose set contained the label; kind is blind, assisted or excluded.",
            labels=by_stratum,
        )
        self._judged = GaugeMetricFamily(
            "surespan_live_coverage_tasks", "Labelled tasks behind the live coverage.", labels=by_stratum
        )
        self._alarms = GaugeMetricFamily(
            "surespan_alarms", "Alarms that nobody has acknowledged: drift, coverage, gap.", labels=["project", "kind"]
        )
        self._drift = GaugeMetricFamily(
            "surespan_drift_martingale",
            "Betting score against “no drift”; alarm at 20, at 20 m where m strata are watched.",
            labels=["project", "stratum"],
        )
        self._gap = GaugeMetricFamily(
            "surespan_acceptance_gap",
            "Share of prelabels kept when in view, minus blind agreement with them.",
            labels=["project"],
        )

    def add(self, session: Session, project: ProjectRecord, model: ModelRecord) -> None:
        """Read the figures of a project under a model."""
        rows = coverage_rows(session, project.id, model_id=model.id, scope=STRATUM)
        for stratum, kind in sorted({(row.name, row.kind) for row in rows}):
            sums = add_up(row for row in rows if (row.name, row.kind) == (stratum, kind))
            if sums["total"]:
                self._covered.add_metric([project.uid, stratum, kind], sums["covered"] / sums["total"])
                self._judged.add_metric([project.uid, stratum, kind], sums["total"])
        standing = Counter(each.kind for each in list_alarms(session, project.id) if each.acknowledged_at is None)
        for kind in (COVERAGE, DRIFT, GAP):
            self._alarms.add_metric([project.uid, kind], standing[kind])
        for each in list_monitors(session, project.id, model_id=model.id, kind=DRIFT):
            self._drift.add_metric([project.uid, each.stratum], each.value)
        seen, blind = (add_up(row for row in rows if row.kind == kind) for kind in ("assisted", "blind"))
        if seen["tasks"] and blind["tasks"]:
            gap = seen["accepted"] / seen["tasks"] - blind["accepted"] / blind["tasks"]
            self._gap.add_metric([project.uid], gap)

    def families(self) -> Iterator[Metric]:
        """Return what was collected."""
        yield from (self._covered, self._judged, self._alarms, self._drift, self._gap)
