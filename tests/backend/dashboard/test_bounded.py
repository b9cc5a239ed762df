"""What pages read does not grow with labels, tasks or deliveries: counted by the database itself, on both kinds.

`make bench` prints the same for 10^6 calibration rows and 10^5 tasks (`benchmarks/dashboard.py`).
"""

from __future__ import annotations

import pytest
from flask import Flask

from backend.app import service_of
from backend.store import Store
from benchmarks.dashboard import PAGES, Reading, grow, measure

FEW, MANY = 300, 6_000
LARGE = "api: queue of 500"  # a twelfth of the test's tasks: reading all of them is no mistake of the planner


def read_all(app: Flask) -> dict[str, Reading]:
    return {name: measure(app, path) for name, path in PAGES.items() if name not in {LARGE, "metrics"}}


def test_twenty_times_the_rows_and_tasks_cost_no_more_reading(empty_app: Flask) -> None:
    service = service_of(empty_app)
    service.views.polled.every = 60.0
    with Store(service.settings.database_url) as store:
        grow(store, service.views.model_of, rows=FEW, tasks=FEW)
        small = read_all(empty_app)
        grow(store, service.views.model_of, rows=MANY, tasks=MANY, begin=2 * FEW)
    large = read_all(empty_app) | {"metrics": measure(empty_app, PAGES["metrics"])}
    for name, page in large.items():
        assert page.queries, name
        assert page.whole_scans() == [], name
        if name in small:
            assert page.queries == small[name].queries, name
            assert page.read <= 1.2 * small[name].read + 100, name
    assert len(empty_app.test_client().get(PAGES["api: queue"]).json["tasks"]) == 50


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_a_page_that_reads_everything_would_be_noticed(empty_app: Flask) -> None:
    """The measure itself: counting a table is a scan, and takes more steps the more rows there are."""
    service = service_of(empty_app)

    @empty_app.get("/count")
    def count() -> str:
        with service.reads.read() as session:
            return str(session.connection().exec_driver_sql("SELECT count(*) FROM tasks WHERE length > 1").scalar())

    with Store(service.settings.database_url) as store:
        grow(store, service.views.model_of, rows=FEW, tasks=FEW)
        small = measure(empty_app, "/count")
        grow(store, service.views.model_of, rows=MANY, tasks=MANY, begin=2 * FEW)
    large = measure(empty_app, "/count")
    assert large.whole_scans() == ["SCAN tasks"]
    assert large.read > 10 * small.read
