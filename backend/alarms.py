"""What the counters of judged labels say when they say it loudly: alarms by confidence sequences (METHODS 8.8).

A confidence sequence holds at all times at once, so it may be looked at after every label. Alarms are for people;
nothing is refitted, served or withheld because of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from backend.evidence import Evidence
from backend.store.judgements import CoverageRow, add_up
from backend.store.monitor import COVERAGE, DRIFT, GAP
from conformal.monitor.beta import beta_quantile
from conformal.monitor.coverage import confidence_sequence
from conformal.quantile import exact_level, rank

PROMISED = frozenset({"own", "assisted"})
_HALF = "0.025"  # each of the two things that must go wrong for a false alarm

ADVICE = {
    DRIFT: "Look at what has been imported lately: thresholds from before the change promise nothing after it. Label "
    "more audit tasks, or start a project for the new texts.",
    COVERAGE: "Label more audit tasks and refit; if it stays, look whether annotators follow the guidelines, and raise "
    "nothing on these sets until then.",
    GAP: "Raise SURESPAN_BLIND (or SURESPAN_AUDIT_SHARE) so that thresholds soon rest on labels made without a "
    "prelabel, and ask annotators to read before they accept.",
}


@dataclass(frozen=True)
class Raised:
    """An alarm that the counters call for."""

    kind: str
    stratum: str
    value: float
    message: str


def find_alarms(rows: Sequence[CoverageRow]) -> list[Raised]:
    """Return the alarms that counters by stratum call for; each kind is ever false with probability of about 5 %."""
    found = [alarm for alpha in sorted({row.alpha for row in rows}) if (alarm := _coverage(rows, alpha)) is not None]
    gap = _gap(rows)
    return found if gap is None else [*found, gap]


def _coverage(rows: Sequence[CoverageRow], alpha: str) -> Raised | None:
    """Alarm when blind labels show less coverage than even an unlucky draw of the thresholds explains.

    Given one version coverage is Beta(k, n+1-k): the sequence must lie below the lower end of that law for the
    smallest n that was used.
    """
    blind = [
        row
        for row in rows
        if row.kind == Evidence.BLIND and row.guarantee in PROMISED and row.alpha == alpha and row.total
    ]
    if not blind:
        return None
    n = min(row.n for row in blind)
    k = rank(n, alpha)
    if k > n:
        return None
    sums = add_up(blind)
    low, high = confidence_sequence(sums["covered"], sums["total"], error=_HALF)
    least = beta_quantile(float(_HALF), k, n + 1 - k)
    if high >= least:
        return None
    share = sums["covered"] / sums["total"]
    target = float(1 - exact_level(alpha))
    return Raised(
        COVERAGE,
        "",
        share,
        f"Sets held {share:.1%} of {sums['total']:,} labels made without a prelabel, at a target of {target:g} "
        f"(between {low:.1%} and {high:.1%} at all times at once; chance explains {least:.1%} at least). "
        + ADVICE[COVERAGE],
    )


def _gap(rows: Sequence[CoverageRow]) -> Raised | None:
    """Alarm when prelabels in view are kept oftener than blind labels agree with them."""
    seen, blind = (add_up(row for row in rows if row.kind == kind) for kind in (Evidence.ASSISTED, Evidence.BLIND))
    if not (seen["tasks"] and blind["tasks"]):
        return None
    low, _ = confidence_sequence(seen["accepted"], seen["tasks"], error=_HALF)
    _, high = confidence_sequence(blind["accepted"], blind["tasks"], error=_HALF)
    if low <= high:
        return None
    gap = seen["accepted"] / seen["tasks"] - blind["accepted"] / blind["tasks"]
    return Raised(
        GAP,
        "",
        gap,
        f"With a prelabel in view people keep the best labeling {100 * gap:.1f} points oftener than without. "
        + ADVICE[GAP],
    )
