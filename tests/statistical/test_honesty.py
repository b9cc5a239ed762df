"""Honesty under selection: whatever the queue shows first, thresholds from audit rows keep the promise (METHODS 8.1).

The promise is for a random task of the collection. A queue by the model's doubt labels the hard tasks first; another
may label the easy ones first. Thresholds from all labels are then fitted on a selection and miss their target; those
from audit tasks, drawn by hash and shown blind at random places of the queue, do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np
import pytest

from backend.calibration.evidence import choose_evidence, row_weights
from backend.domain.streams import Order
from conformal.thresholds import Thresholds, calibrate
from tests.support.loop_world import (
    Collection,
    band,
    collection,
    covered_by,
    draws,
    law_of,
    may_calibrate,
    mean_size,
    queue_order,
    simulate,
    two_sided,
)

ALPHAS = ("0.1", "0.05")


@dataclass(frozen=True)
class Outcome:
    """One seed, order and level: what audit thresholds and all-labels thresholds cover."""

    n: int
    covered: int
    total: int
    p_value: float
    band: tuple[float, float]
    size: float
    naive: int
    naive_p: float
    naive_size: float
    left: float  # coverage of audit thresholds on tasks that are still unlabelled
    left_low: float  # P(no more are covered than were), by the law: small when these are undercovered


def run(tasks: Collection, *, seed: int, hard_first: bool, labelled: int, tested: int, n_min: int) -> list[Outcome]:
    """Label the first tasks of a queue, calibrate both ways, and look at a random sample of all non-audit tasks."""
    salt = f"seed {seed}"
    drawn = draws(len(tasks), salt=salt, order=Order.REVIEW)
    queue = queue_order(tasks, drawn, salt=salt, hard_first=hard_first)
    done, waiting = queue[:labelled], queue[labelled:]
    eligible = may_calibrate(drawn, done, Order.REVIEW)
    audit = done[eligible]
    assert choose_evidence({"blind": audit.size}, n_min=n_min) == {"blind"}
    assert all(drawn[task].blind for task in audit.tolist())
    weights = row_weights(np.array([1 / drawn[task].selection_probability for task in audit.tolist()]))
    own = fit(tasks, audit, n_min=n_min, weights=weights)
    naive = fit(tasks, done, n_min=n_min)
    rng = np.random.default_rng(seed)
    shown = np.flatnonzero([not draw.blind for draw in drawn])
    test = rng.permutation(shown)[:tested]
    left = rng.permutation([task for task in waiting.tolist() if not drawn[task].blind])[:tested]
    made = []
    for alpha in ALPHAS:
        law = law_of(own, tasks, test, alpha, seed=seed)
        covered = int(covered_by(own, tasks, test, alpha).sum())
        other = int(covered_by(naive, tasks, test, alpha).sum())
        on_left = covered_by(own, tasks, left, alpha)
        left_law = law_of(own, tasks, left, alpha, seed=seed)
        made.append(
            Outcome(
                n=audit.size,
                covered=covered,
                total=test.size,
                p_value=two_sided(law, covered),
                band=band(law, 0.05),
                size=mean_size(own, tasks, test[:2000], alpha),
                naive=other,
                naive_p=two_sided(law_of(naive, tasks, test, alpha, seed=seed), other),
                naive_size=mean_size(naive, tasks, test[:2000], alpha),
                left=float(on_left.mean()),
                left_low=float(np.mean(left_law <= on_left.sum())),
            )
        )
    return made


def fit(tasks: Collection, index: np.ndarray, *, n_min: int, weights: np.ndarray | None = None) -> Thresholds:
    return calibrate(tasks.rows(index, weight=weights), classes=["X"], n_min=n_min)


def table(title: str, results: list[list[Outcome]], which: int) -> str:
    found = [result[which] for result in results]
    share = [each.covered / each.total for each in found]
    naive = [each.naive / each.total for each in found]
    low, high = np.mean([each.band for each in found], axis=0) / found[0].total
    return (
        f"| {title} | {np.mean([each.n for each in found]):.0f} | {np.mean(share):.4f} ± {np.std(share):.4f} "
        f"| {low:.4f}-{high:.4f} | {min(each.p_value for each in found):.3f} "
        f"| {np.mean([each.size for each in found]):.2f} | {np.mean(naive):.4f} ± {np.std(naive):.4f} "
        f"| {max(each.naive_p for each in found):.1g} | {np.mean([each.naive_size for each in found]):.2f} "
        f"| {np.mean([each.left for each in found]):.4f} |"
    )


HEAD = (
    "| order, target | audit rows | audit thresholds cover | 95 % band of one seed | least p of a seed | mean set "
    "| all labels cover | greatest p of a seed | mean set | audit thresholds on unlabelled tasks |\n"
    "|---|---|---|---|---|---|---|---|---|---|"
)


def fisher(p_values: list[float]) -> float:
    """Return -2 sum log p against its mean of 2 per p-value: how far all seeds together are from their laws."""
    return sum(-2 * log(max(p, 1e-6)) for p in p_values) / len(p_values)


def judge(results: dict[bool, list[list[Outcome]]], *, outside: float) -> None:
    seeds = len(results[True])
    for hard_first, runs in results.items():
        for which in range(len(ALPHAS)):
            found = [each[which] for each in runs]
            # Inside: no seed is off its own law by more than chance among all seeds, orders and levels allows.
            assert min(each.p_value for each in found) > 0.01 / (4 * seeds)
            assert fisher([each.p_value for each in found]) < 2 + 6 * 2 / np.sqrt(seeds)
            # Outside: all labels miss their own law in every seed, on the side the order makes them miss.
            assert max(each.naive_p for each in found) < outside
            target = 1 - float(ALPHAS[which])
            assert all((each.naive / each.total > target) == hard_first for each in found)
            if hard_first:
                # What is left of the collection is easier than all of it: no undercoverage there.
                assert min(each.left_low for each in found) > 0.01 / (4 * seeds)


def test_audit_rows_keep_the_promise_in_any_order_and_all_labels_do_not(capsys: pytest.CaptureFixture[str]) -> None:
    tasks = simulate(9_000, seed=3)
    results = {
        order: [run(tasks, seed=seed, hard_first=order, labelled=900, tested=3_000, n_min=40) for seed in range(4)]
        for order in (True, False)
    }
    with capsys.disabled():
        print(f"\n{HEAD}")
        for order, runs in results.items():
            for which, alpha in enumerate(ALPHAS):
                name = "hard first" if order else "easy first"
                print(table(f"{name}, {1 - float(alpha):g}", runs, which))
    judge(results, outside=0.15)  # at this size a seed alone does not prove it, four together do


def test_weights_keep_the_promise_when_the_audit_share_is_changed_midway(capsys: pytest.CaptureFixture[str]) -> None:
    """A queue shows hard tasks first; the share is raised when half of them have been shown (METHODS 3.7)."""
    tasks = simulate(9_000, seed=13)
    by_doubt = np.argsort(tasks.best, kind="stable")
    early = np.zeros(len(tasks), dtype=bool)
    early[by_doubt[:4_500]] = True
    weighted, plain, effective = [], [], []
    for seed in range(12):
        low, high = (draws(len(tasks), salt=f"share {seed}", order=Order.REVIEW, audit_share=p) for p in (0.04, 0.3))
        drawn = [low[task] if early[task] else high[task] for task in range(len(tasks))]
        audit = np.flatnonzero([draw.stream == "audit" for draw in drawn])
        weights = row_weights(np.array([1 / drawn[task].selection_probability for task in audit.tolist()]))
        own = fit(tasks, audit, n_min=100, weights=weights)
        unweighted = fit(tasks, audit, n_min=100)
        test = np.setdiff1d(np.arange(len(tasks)), audit)
        # The rest of the collection is what was not drawn, so it is looked at as a random task would be.
        chance = np.array([1 - (0.04 if early[task] else 0.3) for task in test.tolist()])
        weighted.append(np.average(covered_by(own, tasks, test, "0.1"), weights=1 / chance))
        plain.append(np.average(covered_by(unweighted, tasks, test, "0.1"), weights=1 / chance))
        effective.append(sum({own.pool(cell).pool.name: own.effective_n(cell) for cell in own.cells}.values()))
    with capsys.disabled():
        print(
            f"\naudit share 0.04, then 0.3: weighted thresholds cover {np.mean(weighted):.4f} ± {np.std(weighted):.4f}"
            f" at 0.9 (rows worth {np.mean(effective):.0f}), unweighted {np.mean(plain):.4f} ± {np.std(plain):.4f}"
        )
    error = np.std(weighted) / np.sqrt(len(weighted))
    assert np.mean(weighted) > 0.9 - 4 * error
    assert np.mean(plain) < 0.88


@pytest.mark.slow
def test_honesty_at_full_size(capsys: pytest.CaptureFixture[str]) -> None:
    """20,000 tasks, 2,000 labelled, 20 seeds, both orders."""
    tasks = collection(20_000)
    results = {
        order: [run(tasks, seed=seed, hard_first=order, labelled=2_000, tested=5_000, n_min=100) for seed in range(20)]
        for order in (True, False)
    }
    with capsys.disabled():
        print(f"\n{tasks.source}: 20,000 of them a collection, 2,000 labelled, 20 seeds\n{HEAD}")
        for order, runs in results.items():
            for which, alpha in enumerate(ALPHAS):
                name = "hard first" if order else "easy first"
                print(table(f"{name}, {1 - float(alpha):g}", runs, which))
    judge(results, outside=1e-3)
