"""How far the end is: tasks and places that are left, errors that would stay, and the work to come (METHODS 14.5)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from backend.worth.accuracy import Labelled
from backend.worth.sample import Sample
from backend.worth.times import Work
from conformal.estimates import (
    IDLE_CAP,
    LEAST_LABELS,
    Forecast,
    add_forecasts,
    estimate_errors,
    forecast_total,
)
from conformal.quantile import Floats

RECENT = 500  # submissions of an arm that a forecast rests on: people get quicker, models better


def what_is_left(sample: Sample, blind: Labelled, work: Work, *, at_random: bool) -> dict[str, Any]:
    """Return what is left to do, as JSON values.

    at_random: people still get tasks in a random order, and nothing was accepted: what is left is then like what was
    seen. Otherwise there is no forecast, and errors are what the model itself expects.
    """
    left = ~sample.labelled
    looked_at = left & ~sample.blind
    tasks, blank = sample.count(left), sample.count(left & sample.blind)
    return {
        "tasks": sample.tasks,
        "known": max(sample.total, len(sample)),  # tasks that the service has heard of, asked about or not
        "sampled": None if sample.complete else len(sample),
        "left": tasks,
        "blind": blank,
        "with_places": sample.count(looked_at & (sample.flags != 0)),
        "without_places": sample.count(looked_at & (sample.flags == 0)),
        "places": round(sample.total_of(np.where(looked_at, np.maximum(sample.flags, 0), 0).astype(np.float64))),
        "at_random": at_random,
        "errors": _errors(sample, blind, tasks=tasks, at_random=at_random),
        "seconds": _seconds(work, blank=blank, others=tasks - blank) if at_random else None,
    }


def _errors(sample: Sample, blind: Labelled, *, tasks: int, at_random: bool) -> dict[str, Any] | None:
    """Return how many missing and false entities stay if all stop now and prelabels are taken as they are."""
    left = ~sample.labelled
    if not left.any():
        return {"value": 0.0, "low": 0.0, "high": 0.0, "corrected": True} if len(sample) else None
    expected = sample.expected.take(left).of()
    if at_random and len(blind) >= LEAST_LABELS:
        found = estimate_errors(
            blind.found.of(),
            blind.expected.of(),
            collection=expected,
            chance=1.0 / blind.weight,
            tasks=max(tasks, len(expected)),
        )
        if found is not None:
            return {name: value * tasks for name, value in asdict(found).items()} | {"corrected": True}
    return {"value": float(expected.errors.mean()) * tasks, "low": None, "high": None, "corrected": False}


def _seconds(work: Work, *, blank: int, others: int) -> dict[str, Any] | None:
    """Return the seconds that the tasks left will take, blind ones like blind ones; None from too few times."""
    arms = np.array(work.blind, dtype=bool)
    times = np.minimum(np.array(work.seconds, dtype=np.float64), IDLE_CAP)  # the newest first
    forecast = forecast_work(times[arms][:RECENT], times[~arms][:RECENT], blank=blank, others=others)
    return None if forecast is None else asdict(forecast)


def forecast_work(blind: Floats, assisted: Floats, *, blank: int, others: int) -> Forecast | None:
    """Return the work of tasks without and with a prelabel; where one kind was hardly seen, as if all were of one.

    >>> forecast_work(np.full(40, 30.0), np.full(60, 20.0), blank=10, others=90).total
    2100.0
    """
    parts = [forecast_total(blind, left=blank), forecast_total(assisted, left=others)]
    known = [part for part, left in zip(parts, (blank, others), strict=True) if part is not None or not left]
    if len(known) == len(parts):
        return add_forecasts([part for part in known if part is not None])
    return forecast_total(np.concatenate([blind, assisted]), left=blank + others)
