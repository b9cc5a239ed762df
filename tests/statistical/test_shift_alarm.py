"""The drift alarm of the product on streams of audit rows: it hears a shift, and keeps still without one (METHODS 8.7).

`DriftWatch` is what the worker feeds: one martingale over everything and one per language, each of which has to reach
20m where m are watched.
"""

from __future__ import annotations

import numpy as np
import pytest

from backend.monitoring.drift import DriftWatch, language_of
from tests.support.data import benchmark_data
from tests.support.loop_world import Collection, real, real_news, simulate


def first_alarm(strata: list[str], scores: np.ndarray, *, seed: int) -> int | None:
    """Feed rows in order; return how many it took to the first alarm, None when there was none."""
    watch = DriftWatch()
    draws = np.random.default_rng(seed).random(scores.size)
    for i, (stratum, score, v) in enumerate(zip(strata, scores.tolist(), draws.tolist(), strict=True), start=1):
        if watch.update(language_of(stratum), score, v=v):
            return i
    return None


def false_alarms(tasks: Collection, *, runs: int, rows: int) -> float:
    """Return the share of runs that alarm on a random order of tasks from one collection."""
    alarmed = 0
    for run in range(runs):
        chosen = np.random.default_rng(run).permutation(len(tasks))[:rows]
        alarmed += first_alarm(tasks.cells[chosen].tolist(), tasks.nll[chosen], seed=run) is not None
    return alarmed / runs


def delays(before: Collection, after: Collection, *, runs: int, first: int = 300) -> list[float]:
    """Return the rows from a planted change to the alarm, inf where there was none; early alarms are left out."""
    found = []
    for run in range(runs):
        rng = np.random.default_rng(1000 + run)
        head = before.take(rng.permutation(len(before))[:first])
        tail = after.take(rng.permutation(len(after))[: min(len(after), 900)])
        strata = [*head.cells.tolist(), *tail.cells.tolist()]
        at = first_alarm(strata, np.concatenate([head.nll, tail.nll]), seed=run)
        if at is None or at > first:
            found.append(np.inf if at is None else float(at - first))
    return found


def speaking(tasks: Collection, *languages: str) -> Collection:
    return tasks.take(np.flatnonzero([language_of(cell) in languages for cell in tasks.cells.tolist()]))


def shifted(tasks: Collection) -> Collection:
    """The same tasks when the model is much less sure of what is right."""
    return Collection(tasks.cells, tasks.nll * 2.5 + 0.3, tasks.rank, tasks.listed, "shifted")


def test_a_planted_shift_is_heard_and_without_one_it_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    tasks = simulate(6_000, seed=5)
    quiet = false_alarms(tasks, runs=200, rows=150)
    found = delays(tasks, shifted(tasks), runs=8)
    with capsys.disabled():
        print(
            f"\nsimulated: false alarms {quiet:.2%} of 200 runs; shift heard after {np.median(found):.0f} audit labels"
        )
    assert quiet <= 0.05 + 2.4 * np.sqrt(0.05 * 0.95 / 200)
    assert np.isfinite(found).all()


@pytest.mark.slow
def test_false_alarms_over_two_thousand_clean_runs(capsys: pytest.CaptureFixture[str]) -> None:
    tasks = simulate(27_000, seed=1) if benchmark_data() is None else real()
    share = false_alarms(tasks, runs=2_000, rows=400)
    with capsys.disabled():
        print(f"\n{tasks.source}: false alarms in {share:.2%} of 2,000 clean runs of 400 audit labels")
    assert share <= 0.05


@pytest.mark.slow
def test_another_language_and_another_domain_raise_the_alarm(capsys: pytest.CaptureFixture[str]) -> None:
    if benchmark_data() is None:
        pytest.skip("the benchmark data is not beside the project directory")
    tasks = real()
    others = tuple(language for language in ("de", "es", "fr", "it", "nl", "pl", "pt"))
    shifts = {
        "Spanish, then Russian": (speaking(tasks, "es"), speaking(tasks, "ru")),
        "seven languages, then Russian": (speaking(tasks, *others), speaking(tasks, "ru")),
        "English encyclopedia, then English news": (speaking(tasks, "en"), real_news()),
    }
    with capsys.disabled():
        for name, (before, after) in shifts.items():
            found = delays(before, after, runs=20)
            heard = np.isfinite(found)
            print(
                f"\n{name}: heard in {heard.mean():.0%} of {len(found)} runs, after {np.median(found):.0f} audit labels"
            )
            assert heard.mean() >= 0.95
