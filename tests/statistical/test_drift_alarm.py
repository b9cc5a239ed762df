"""The martingale's false alarms and its delay, over many runs (METHODS 8.7)."""

from __future__ import annotations

import numpy as np
import pytest

from conformal.monitor import jumper_path, online_p_values

LOG_ALARM = np.log(20.0)
HELD = 200


def false_alarms(runs: int, rows: int, seed: int) -> tuple[float, float]:
    """Shares of alarmed runs without drift: online ranks, and ranks against a fixed first part of the scores."""
    rng = np.random.default_rng(seed)
    online = fixed = 0
    for start in range(0, runs, 100):
        count = min(100, runs - start)
        scores = rng.exponential(size=(count, rows))
        v = rng.random((count, rows))
        online += int((jumper_path(online_p_values(scores, v)).max(axis=1) >= LOG_ALARM).sum())
        # The tempting shortcut: rank every later row against the same calibration rows.
        held, later = np.sort(scores[:, :HELD], axis=1), scores[:, HELD:]
        greater = np.stack([HELD - np.searchsorted(h, s, side="right") for h, s in zip(held, later, strict=True)])
        p = (greater + v[:, HELD:]) / (HELD + 1)
        fixed += int((jumper_path(p).max(axis=1) >= LOG_ALARM).sum())
    return online / runs, fixed / runs


def delays(runs: int, shift: float, seed: int, *, before: int = 1000, after: int = 4000) -> np.ndarray:
    """Rows from a planted change (scores times `shift`) to the alarm; inf where there was none.

    Runs that alarmed before the change are left out.
    """
    rng = np.random.default_rng(seed)
    scores = rng.exponential(size=(runs, before + after))
    scores[:, before:] *= shift
    wealth = jumper_path(online_p_values(scores, rng.random(scores.shape)))
    quiet = wealth[:, :before].max(axis=1) < LOG_ALARM
    alarmed = wealth[quiet, before:] >= LOG_ALARM
    return np.where(alarmed.any(axis=1), alarmed.argmax(axis=1) + 1.0, np.inf)


def test_online_ranks_keep_the_false_alarm_bound_and_a_fixed_split_breaks_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    online, fixed = false_alarms(2000, 5000, 10)
    with capsys.disabled():
        print(f"\nfalse alarms in 2000 runs x 5000 rows: online ranks {online:.2%}, fixed split {fixed:.2%}")
    assert online <= 0.05
    assert fixed > 0.15


def test_planted_shifts_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    for shift, worst in ((1.35, np.inf), (1.5, 400), (2.0, 200), (3.0, 100), (0.5, 200)):
        found = delays(300, shift, 11)
        with capsys.disabled():
            share = np.isfinite(found).mean()
            print(f"\nscores x {shift}: median delay {np.median(found):.0f} rows, found {share:.1%}", end="")
        assert np.median(found) <= worst
