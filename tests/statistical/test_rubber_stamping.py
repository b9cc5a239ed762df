"""Annotators who accept what they are shown: assisted thresholds are too tight, blind ones are not (METHODS 8.2).

Three of ten wrong prelabels are accepted as they are. Nothing in a label tells that it was: only tasks labelled without
a prelabel do, as the gap between the two kinds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from backend.calibration.evidence import Gap, choose_evidence
from backend.domain.streams import Order
from conformal.thresholds import calibrate
from tests.support.loop_world import (
    Collection,
    collection,
    covered_by,
    draws,
    law_of,
    may_calibrate,
    simulate,
    two_sided,
)

STAMPED = 0.3
ALPHAS = ("0.1", "0.05")


@dataclass(frozen=True)
class Outcome:
    blind: tuple[float, float]  # coverage on held-out tasks, two-sided p-value
    assisted: tuple[float, float]  # and the p-value of undercoverage
    gap: Gap


def run(
    tasks: Collection, *, seed: int, labelled: int, n_min: int, blind_share: float = 0.1, stamped: float = STAMPED
) -> list[Outcome]:
    """Label tasks in uniform order, some of them blind; calibrate on each kind; look at tasks nobody labelled."""
    drawn = draws(len(tasks), salt=f"stamp {seed}", order=Order.UNIFORM, blind=blind_share)
    order = np.argsort([draw.random_order for draw in drawn])
    done, test = order[:labelled], order[labelled:]
    assert may_calibrate(drawn, done, Order.UNIFORM).all()
    blind = np.array([drawn[task].blind for task in done.tolist()])
    rng = np.random.default_rng(seed)
    accepted = ~tasks.right & (rng.random(len(tasks)) < stamped)
    said = np.where(accepted, -tasks.listed[:, 0], tasks.nll)  # the score of what they say
    is_best = tasks.right | accepted
    seen, unseen = done[~blind], done[blind]
    counts = {"blind": unseen.size, "assisted": seen.size}
    assert choose_evidence(counts, n_min=n_min) == {"blind"}
    clean = calibrate(tasks.rows(unseen), classes=["X"], n_min=n_min)
    tight = calibrate(tasks.rows(seen, nll=said), classes=["X"], n_min=n_min)
    gap = Gap(int(is_best[seen].sum()), seen.size, int(tasks.right[unseen].sum()), unseen.size)
    made = []
    for alpha in ALPHAS:
        covered = covered_by(clean, tasks, test, alpha)
        under = covered_by(tight, tasks, test, alpha)
        made.append(
            Outcome(
                (float(covered.mean()), two_sided(law_of(clean, tasks, test, alpha, seed=seed), int(covered.sum()))),
                (float(under.mean()), float(np.mean(law_of(tight, tasks, test, alpha, seed=seed) <= under.sum()))),
                gap,
            )
        )
    return made


def show(title: str, runs: list[list[Outcome]]) -> None:
    print(f"\n{title}\n| target | blind thresholds cover | least p | assisted cover | greatest p of undercoverage |")
    print("|---|---|---|---|---|")
    for which, alpha in enumerate(ALPHAS):
        found = [run[which] for run in runs]
        blind, assisted = [each.blind for each in found], [each.assisted for each in found]
        print(
            f"| {1 - float(alpha):g} | {np.mean([b for b, _ in blind]):.4f} ± {np.std([b for b, _ in blind]):.4f} "
            f"| {min(p for _, p in blind):.3f} | {np.mean([a for a, _ in assisted]):.4f} "
            f"| {max(p for _, p in assisted):.2g} |"
        )
    gaps = [run[0].gap for run in runs]
    low, high = np.mean([gap.interval for gap in gaps], axis=0)
    print(
        f"gap {np.mean([gap.value for gap in gaps]):+.3f} (mean interval {low:+.3f} to {high:+.3f}), "
        f"detected in {sum(gap.detected for gap in gaps)} of {len(gaps)}"
    )


def judge(runs: list[list[Outcome]]) -> None:
    for which in range(len(ALPHAS)):
        assert min(run[which].blind[1] for run in runs) > 0.01 / (2 * len(runs))
        assert max(run[which].assisted[1] for run in runs) < 0.01
    assert all(run[0].gap.detected for run in runs)


def test_assisted_thresholds_undercover_blind_ones_do_not_and_the_gap_tells(capsys: pytest.CaptureFixture[str]) -> None:
    tasks = simulate(12_000, seed=8)
    runs = [run(tasks, seed=seed, labelled=8_000, n_min=100, blind_share=0.25) for seed in range(3)]
    honest = [run(tasks, seed=seed, labelled=8_000, n_min=100, blind_share=0.25, stamped=0.0) for seed in range(3)]
    with capsys.disabled():
        show("30 % of wrong prelabels accepted", runs)
        show("none accepted", honest)
    judge(runs)
    # Without rubber-stamping neither kind undercovers, and there is no gap to see.
    assert min(run[which].assisted[1] for run in honest for which in range(2)) > 1e-3
    assert not any(run[0].gap.detected for run in honest)


@pytest.mark.slow
def test_rubber_stamping_on_real_text(capsys: pytest.CaptureFixture[str]) -> None:
    tasks = collection(27_000)
    runs = [run(tasks, seed=seed, labelled=15_000, n_min=100) for seed in range(20)]
    with capsys.disabled():
        show(f"{tasks.source}, 15,000 labelled, 30 % of wrong prelabels accepted, 20 seeds", runs)
    judge(runs)
