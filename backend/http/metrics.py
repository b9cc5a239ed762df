"""`/metrics` for Prometheus: what the processes of this service counted, and what the database says now."""

from __future__ import annotations

from collections.abc import Iterator

from flask import Blueprint, Response
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.core import GaugeMetricFamily, Metric

from backend.http.collecting import StoredFigures
from backend.http.monitor_metrics import MonitorFamilies
from backend.serving.service import Service
from backend.store.attempts import count_set_aside
from backend.store.engine import database_now
from backend.store.events import inbox_depth, oldest_pending
from backend.store.jobs import count_jobs
from backend.store.projects import list_projects, lookup_model
from backend.store.reports import count_versions
from backend.store.thresholds import active_version_ids


class DatabaseCollector(StoredFigures):
    """The inbox, the jobs and what each project is served with."""

    def _read(self) -> Iterator[Metric]:
        inbox = GaugeMetricFamily(
            "surespan_inbox_events", "Events that are waiting (pending), or failed for good (dead).", labels=["state"]
        )
        behind = GaugeMetricFamily(
            "surespan_inbox_age_seconds", "Age of the oldest waiting event: how far behind the worker is."
        )
        jobs = GaugeMetricFamily("surespan_jobs", "Jobs waiting, running or failed.", labels=["kind", "state"])
        aside = GaugeMetricFamily(
            "surespan_labels_set_aside", "Labels that are not scored any more, because it failed.", labels=["project"]
        )
        refits = GaugeMetricFamily("surespan_threshold_versions", "Threshold versions ever made: refits.")
        active = GaugeMetricFamily(
            "surespan_active_version", "The version in use, 0 for the starter.", labels=["project"]
        )
        monitors = MonitorFamilies()
        with self._service.reads.read() as session:
            for state, count in inbox_depth(session).items():
                inbox.add_metric([state], count)
            oldest = oldest_pending(session)
            waited = 0.0 if oldest is None else (database_now(session) - oldest).total_seconds()
            behind.add_metric([], max(0.0, waited))
            for (kind, state), count in count_jobs(session).items():
                jobs.add_metric([kind, state], count)
            refits.add_metric([], count_versions(session))
            given_up = count_set_aside(session)
            versions = active_version_ids(session)
            for project in list_projects(session):
                aside.add_metric([project.uid], given_up.get(project.id, 0))
                header = self._service.views.serving_model(project)
                model = lookup_model(session, header.name, header.hash)
                if model is None:
                    continue
                active.add_metric([project.uid], versions.get((project.id, model.id), 0))
                monitors.add(session, project, model)
        yield from (inbox, behind, jobs, aside, refits, active)
        yield from monitors.families()


def blueprint(service: Service) -> Blueprint:
    """Return the route over a service."""
    routes = Blueprint("metrics", __name__)
    measures = service.measures
    measures.registry.register(DatabaseCollector(service))

    @routes.get("/metrics")
    def metrics() -> Response:
        measures.model_ready.set(service.loader.state == "ready")
        measures.backlog.set(service.recorder.backlog)
        measures.waiting.set(service.gate.waiting)
        return Response(measures.latest(), content_type=CONTENT_TYPE_LATEST)

    return routes
