"""A route, metric or setting of the service that the reference does not name fails here."""

from __future__ import annotations

import re

from flask import Flask
from prometheus_client import generate_latest

from backend.app import service_of
from backend.http.errors import STATUS
from backend.settings import variable_of
from tests.support.paths import ROOT

PAGES = ROOT / "docs" / "reference"
REFERENCE = (PAGES / "http.md").read_text(encoding="utf-8")
METRICS = (PAGES / "metrics.md").read_text(encoding="utf-8")


def test_every_route_is_in_the_reference(idle_app: Flask) -> None:
    for rule in idle_app.url_map.iter_rules():
        shown = re.escape(re.sub(r"<int.*:", "<", rule.rule))
        # Whole and in code: `/dashboard` is not documented by `/dashboard/try`.
        assert re.search(rf"`(?:[A-Z, ]+ )?{shown}(?:\?[^`]*)?`", REFERENCE), rule.rule


def test_every_metric_is_in_the_reference(idle_app: Flask) -> None:
    text = generate_latest(service_of(idle_app).measures.registry).decode()
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# HELP")}
    told = set(re.findall(r"^\| `(\w+)", METRICS, re.MULTILINE))
    assert {name for name in names if not name.endswith("_created")} == told


def test_every_setting_of_the_service_is_in_the_reference() -> None:
    fields = (
        "port host workers threads log_level basic_auth_user basic_auth_pass webhook_secret model_dir model_wait "
        "labels_control max_text max_request_mb task_hosts task_hosts_private cache_tasks"
    )
    for field in fields.split():
        assert f"`{variable_of(field)}`" in REFERENCE


def test_every_status_is_in_the_reference() -> None:
    for status in {*STATUS.values(), 401, 403, 404, 405, 413} - {409, 500}:
        assert str(status) in REFERENCE
