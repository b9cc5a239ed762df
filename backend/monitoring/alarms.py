"""What the counters of judged labels say when they say it loudly: alarms by confidence sequences (METHODS 8.8).

A confidence sequence holds at all times at once, so it may be looked at after every label. Alarms are for people;
nothing is refitted, served or withheld because of one.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from fractions import Fraction

from backend.calibration.evidence import Evidence
from backend.store.judgements import STRATUM, WHOLE, CoverageRow, add_up
from backend.store.monitor import COVERAGE, DRIFT, GAP
from conformal.monitor.beta import beta_quantile
from conformal.monitor.coverage import confidence_sequence
from conformal.quantile import exact_level, rank

PROMISED = frozenset({"own", "assisted"})
_HALF = "0.025"  # each of the two things that must go wrong for a false alarm

ADVICE = {
    DRIFT: "Look at what has been imported lately: thresholds from before the change promise nothing after it. Label "
    "more audit tasks, or start a project for the new texts.",
    COVERAGE: "Label more audit tasks and refit; if it persists, check that annotators follow the guidelines, and do "
    "not rely on these sets until then.",
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


def find_alarms(rows: Sequence[CoverageRow], *, adaptive: Container[int] = ()) -> list[Raised]:
    """Return the alarms that counters by stratum call for; each kind is ever false with probability of about 5 %.

    Args:
        adaptive: versions whose alpha followed the misses; they promise the long run alone, so they are not judged.
    """
    strata = [row for row in rows if row.scope == STRATUM]
    whole = [row for row in rows if row.scope == WHOLE] or strata
    blind = [
        row
        for row in strata
        if row.kind == Evidence.BLIND and row.guarantee in PROMISED and row.total and row.version_id not in adaptive
    ]
    several = pools_a_task(rows, Evidence.BLIND)
    first: dict[str, int] = {}
    for row in blind:
        first[row.alpha] = min(row.version_id, first.get(row.alpha, row.version_id))
    alphas = sorted(first, key=lambda alpha: (first[alpha], alpha))
    alarms = [
        alarm
        for turn, alpha in enumerate(alphas)
        if (
            alarm := _coverage([row for row in blind if row.alpha == alpha], alpha, error=_share(turn), several=several)
        )
        is not None
    ]
    gap = _gap(whole)
    return alarms if gap is None else [*alarms, gap]


def pools_a_task(rows: Sequence[CoverageRow], kind: str) -> float:
    """Return in how many pools a task of this kind counts on average: 1 where texts are one unit each."""
    pairs = sum(row.tasks for row in rows if row.scope == STRATUM and row.kind == kind)
    tasks = sum(row.tasks for row in rows if row.scope == WHOLE and row.kind == kind)
    return max(1.0, pairs / tasks) if tasks else 1.0


def as_tasks(covered: int, total: int, several: float) -> tuple[int, int]:
    """Return counts over pools as counts of tasks, of which each is one draw whatever it counts in.

    >>> as_tasks(90, 100, 1.0), as_tasks(90, 100, 2.5)
    ((90, 100), (36, 40))
    """
    tasks = int(total / several)
    return min(tasks, round(covered / several)), tasks


def _share(turn: int) -> Fraction:
    """Return the part of the error that one alpha may spend, by its turn: nearly all is the first one's.

    In the order in which they were first served, so that later ones take nothing back.

    >>> float(sum(_share(turn) for turn in range(1000)) / Fraction(_HALF)) < 1
    True
    """
    part = Fraction(4, 5) if turn == 0 else Fraction(1, 5 * turn * (turn + 1))
    return part * Fraction(_HALF)


def _coverage(blind: Sequence[CoverageRow], alpha: str, *, error: Fraction, several: float = 1.0) -> Raised | None:
    """Alarm when blind labels show less coverage than even an unlucky draw of the thresholds explains.

    Given one version coverage is Beta(k, n+1-k): the sequence must lie below the lower end of that law for the
    smallest n that was used. A task that counts in `several` pools is one draw, not several.
    """
    n = min(row.n for row in blind)
    k = rank(n, alpha)
    if k > n:
        return None
    sums = add_up(blind)
    low, high = confidence_sequence(*as_tasks(sums["covered"], sums["total"], several), error=error)
    least = beta_quantile(float(error), k, n + 1 - k)
    if high >= least:
        return None
    share = sums["covered"] / sums["total"]
    target = float(1 - exact_level(alpha))
    return Raised(
        COVERAGE,
        "",
        share,
        f"Sets contained {share:.1%} of {sums['total']:,} labels made without a prelabel, at a target of {target:g} "
        f"(between {low:.1%} and {high:.1%} at all times at once; chance explains {least:.1%} at least). "
        + ADVICE[COVERAGE],
    )


def _gap(rows: Sequence[CoverageRow]) -> Raised | None:
    """Alarm when prelabels in view are kept more often than blind labels agree with them."""
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
        f"With a prelabel in view people keep the best labeling {100 * gap:.1f} points more often than without. "
        + ADVICE[GAP],
    )
