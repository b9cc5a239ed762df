"""What reconciliation and publishing last did, for programs and for Prometheus, as the database has it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from flask import Blueprint, Response, jsonify
from prometheus_client.core import GaugeMetricFamily, Metric
from sqlalchemy.orm import Session

from backend.domain.records import ProjectRecord
from backend.errors import NotFound
from backend.http.collecting import StoredFigures
from backend.serving.service import Service
from backend.store.projects import find_project, list_projects
from backend.store.state import CONNECTION, PUBLISH, SYNC, get_state


def blueprint(service: Service) -> Blueprint:
    """Return the route over a service; its figures are registered with the service's metrics."""
    routes = Blueprint("reconciliation", __name__, url_prefix="/api/v1")
    service.measures.registry.register(SyncCollector(service))

    @routes.get("/projects/<uid>/sync")
    def sync(uid: str) -> Response:
        with service.reads.read() as session:
            project = None if "\x00" in uid else find_project(session, uid)
            if project is None:
                raise NotFound("expected the id or uid of a project, got one that does not exist: see /api/v1/projects")
            return jsonify(describe_sync(session, project, asked=service.settings.label_studio_api_key is not None))

    return routes


def describe_sync(session: Session, project: ProjectRecord, *, asked: bool) -> dict[str, Any]:
    """Return what is known of a project's agreement with Label Studio.

    `asked` says whether the service has a token to ask with; without one, nothing is reconciled or refreshed.
    """
    sync = get_state(session, project.id, SYNC) or {}
    publish = get_state(session, project.id, PUBLISH) or {}
    connection = get_state(session, project.id, CONNECTION) or {}
    return {
        "project": project.uid,
        "connected": bool(connection.get("backend")),
        "asked": asked,
        "cursor": sync.get("cursor"),
        "runs": int(sync.get("runs", 0)),
        "last": sync.get("last"),
        "total": sync.get("total") or {},
        "error": sync.get("error"),
        "publish": {"last": publish.get("last"), "again_at": publish.get("again_at")},
    }


class SyncCollector(StoredFigures):
    """What reconciliation and publishing last did."""

    def _read(self) -> Iterator[Metric]:
        counts = GaugeMetricFamily(
            "surespan_sync_found",
            "What reconciliation found in total: annotations brought in, deleted, unchanged and so on.",
            labels=["project", "kind"],
        )
        last = GaugeMetricFamily(
            "surespan_sync_last_timestamp_seconds", "When a reconciliation last succeeded.", labels=["project"]
        )
        failed = GaugeMetricFamily("surespan_sync_failed", "1 while reconciliation fails.", labels=["project"])
        agrees = GaugeMetricFamily(
            "surespan_publish_agrees",
            "1 when title, model version and predictions in Label Studio match what is being served.",
            labels=["project"],
        )
        with self._service.reads.read() as session:
            for project in list_projects(session):
                known = describe_sync(session, project, asked=True)
                if known["last"] is None and known["error"] is None:
                    continue
                for kind, count in known["total"].items():
                    counts.add_metric([project.uid, kind], count)
                if known["last"] is not None:
                    moment = datetime.fromisoformat(known["last"]["finished_at"])
                    last.add_metric([project.uid], moment.timestamp())
                failed.add_metric([project.uid], known["error"] is not None)
                published = known["publish"]["last"]
                if published is not None:
                    agrees.add_metric([project.uid], bool(published["agrees"]))
        yield from (counts, last, failed, agrees)
