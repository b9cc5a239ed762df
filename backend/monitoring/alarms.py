"""What the counters of judged labels say when they say it loudly: alarms by confidence sequences (METHODS 8.8).

A confidence sequence holds at all times at once, so it may be looked at after every label. Alarms are for people;
nothing is refitted, served or withheld because of one.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from backend.calibration.evidence import Evidence
from backend.store.judgements import MILLION, STRATUM, WHOLE, CoverageRow, add_up
from backend.store.judgements import RISK as RISK_SCOPE
from backend.store.monitor import COVERAGE, DRIFT, GAP, RISK
from conformal.monitor.beta import beta_quantile
from conformal.monitor.coverage import confidence_sequence
from conformal.quantile import Level, exact_level, rank
from conformal.risk import hoeffding_bentkus

PROMISED = frozenset({"own", "assisted"})
_HALF = "0.025"  # each of the two things that must go wrong for a false alarm

ADVICE = {
    DRIFT: "Look at what has been imported lately: thresholds from before the change promise nothing after it. Label "
    "more audit tasks, or start a project for the new texts.",
    COVERAGE: "Label more audit tasks and refit; if it persists, check that annotators follow the guidelines, and do "
    "not rely on these sets until then.",
    RISK: "Look at all of the text, not only at what is amber, until more tasks without a prelabel are labelled and "
    "thresholds are fitted again; check that annotators follow the guidelines.",
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
    return [*alarms, *_risks(rows), *_gaps(whole)]


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


def _risks(rows: Sequence[CoverageRow]) -> list[Raised]:
    """Alarm when blind labels show more errors where nothing was flagged than even an unlucky level explains.

    By what was promised: each share has its part of the error, as the levels of sets have.
    """
    own = [
        row
        for row in rows
        if row.scope == RISK_SCOPE and row.kind == Evidence.BLIND and row.guarantee == "own" and row.total
    ]
    first: dict[str, int] = {}
    for row in own:
        first[row.alpha] = min(row.version_id, first.get(row.alpha, row.version_id))
    raised: list[Raised] = []
    for turn, promised in enumerate(sorted(first, key=lambda each: (first[each], each))):
        mine = [row for row in own if row.alpha == promised]
        alarm = _risk(mine, promised, error=_share(turn))
        raised += [] if alarm is None else [alarm]
    return raised


def _risk(rows: Sequence[CoverageRow], promised: str, *, error: Fraction) -> Raised | None:
    sums = add_up(rows)
    low, high = loss_interval(sums, error=error)
    most = unlucky_risk(min(row.n for row in rows), promised, error=error)
    if low <= most:
        return None
    share = sums["size"] / MILLION / sums["total"]
    return Raised(
        RISK,
        "",
        share,
        f"Where nothing was amber, {share:.1%} of a task's entities were wrong or missing in {sums['total']:,} tasks "
        f"labelled without a prelabel, at a promise of {float(promised):.1%} (between {low:.1%} and {high:.1%} at all "
        f"times at once; chance explains {most:.1%} at most). " + ADVICE[RISK],
    )


def loss_interval(sums: Mapping[str, int], *, error: Level = "0.05") -> tuple[float, float]:
    """Return an interval for the mean loss that holds at all times at once, from the sum of losses alone.

    Losses lie between 0 and 1, and a^x b^(1-x) is convex in x: bets that are fair on coins of the same mean gain no
    more on them. So the sequence of a coin holds, with the sum rounded outwards.

    >>> low, high = loss_interval({"total": 100, "size": 5_000_000})
    >>> low < 0.05 < high
    True
    """
    total, lost = sums["total"], sums["size"] / MILLION
    low, _ = confidence_sequence(min(total, math.floor(lost)), total, error=error)
    _, high = confidence_sequence(min(total, math.ceil(lost)), total, error=error)
    return low, high


def unlucky_risk(n: int, promised: str, *, error: Fraction) -> float:
    """Return the risk that a level fitted on `n` labels exceeds with at most this probability.

    Were it exceeded, the labels would have had a mean loss of at most what was promised (with the +1 of METHODS 11.4)
    at the least level of a greater risk, which is one fixed level: a bound for its mean applies.
    """
    mean = max(0.0, (float(promised) * (n + 1) - 1.0) / n) if n else 1.0
    return max(float(promised), hoeffding_bentkus([mean] * n, error=error))


def _gaps(rows: Sequence[CoverageRow]) -> list[Raised]:
    gap = _gap(rows)
    return [] if gap is None else [gap]


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
