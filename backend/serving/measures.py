"""What the service counts and times, in a registry of its own: two apps in one process do not mix.

Several gunicorn workers count together: each writes its figures into files of a directory that `surespan serve` names
in the environment, and whichever is asked adds them up. Otherwise every scrape would tell of another process, and
counters would seem to fall.
"""

from __future__ import annotations

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from backend.prediction.answer import Answer

DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"  # read by prometheus_client when it is imported

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 100.0)
_TASKS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 10_000)
_MOST_COUNTED = 10**9  # sets of documents have more members than any number that adds up
_SIZES = (0, 1, 2, 3, 5, 10, 20, 50, 100, 1_000, 10_000)


class Measures:
    """The metrics of one app. Names, labels and meanings are listed in docs/reference/metrics.md.

    Figures that all processes read from the database are registered in `registry` by whoever reads them.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.shared = bool(os.environ.get(DIRECTORY))
        own = CollectorRegistry() if self.shared else self.registry
        self.requests = Counter("surespan_requests", "Requests.", ["route", "status"], registry=own)
        self.latency = Histogram(
            "surespan_request_seconds",
            "Seconds from a request to the last byte of its answer.",
            ["route"],
            buckets=_SECONDS,
            registry=own,
        )
        self.batch = Histogram("surespan_predict_tasks", "Tasks in a call of /predict.", buckets=_TASKS, registry=own)
        self.stages = Counter(
            "surespan_predict_stage_seconds",
            "Seconds spent on a stage: tagging, decoding, sets, rendering, storing.",
            ["stage"],
            registry=own,
        )
        self.predicted = Counter(
            "surespan_predicted_tasks",
            "Tasks by where the answer came from: model, cache, shared (another request was computing it), "
            "interactive, blind (asked for interactively, answered with nothing).",
            ["source"],
            registry=own,
        )
        self.unpredictable = Counter(
            "surespan_unpredictable_tasks",
            "Tasks without a prediction, by what was wrong with them.",
            ["reason"],
            registry=own,
        )
        self.set_size = Histogram("surespan_set_size", "Labelings in closed sets.", buckets=_SIZES, registry=own)
        self.open_sets = Counter("surespan_open_sets", "Open sets that were served.", registry=own)
        self.flags = Counter("surespan_flagged_spans", "Spans marked as doubtful.", registry=own)
        self.events = Counter("surespan_events", "Deliveries to /webhook: stored, refused.", ["outcome"], registry=own)
        self.served_rows = Counter(
            "surespan_served_sets", "Records of served sets: recorded, refused, dropped.", ["outcome"], registry=own
        )
        self.backlog = Gauge(
            "surespan_served_backlog",
            "Served sets that wait to be recorded.",
            registry=own,
            multiprocess_mode="livesum",
        )
        self.waiting = Gauge(
            "surespan_predict_waiting",
            "Chunks of tasks that wait for a turn.",
            registry=own,
            multiprocess_mode="livesum",
        )
        self.model_ready = Gauge(
            "surespan_model_ready", "1 when the model is in memory.", registry=own, multiprocess_mode="livemin"
        )

    def latest(self) -> bytes:
        """Return everything in Prometheus' text format: of this process, or of all that share a directory."""
        if not self.shared:
            return generate_latest(self.registry)
        together = CollectorRegistry()
        MultiProcessCollector(together)  # type: ignore[no-untyped-call]
        return generate_latest(together) + generate_latest(self.registry)

    def observe(self, answer: Answer) -> None:
        """Count a set that was made (not one from the cache)."""
        if answer.open:
            self.open_sets.inc()
        elif answer.set_size is not None:
            self.set_size.observe(min(answer.set_size, _MOST_COUNTED))
        self.flags.inc(sum(each.flagged for each in answer.spans))
