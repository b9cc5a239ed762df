"""What may be left alone: what flags promise about everything else, and what later labels measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backend.calibration.evidence import Evidence
from backend.dashboard.figures import Figure, columns
from backend.dashboard.subject import Subject
from backend.domain.guarantee import Guarantee
from backend.monitoring.alarms import loss_interval
from backend.store.judgements import MILLION, RISK, CoverageRow, add_up, coverage_rows
from conformal.risk import RiskLevels, RiskPool


def flag_promise(subject: Subject) -> Figure:
    """Show what is promised where nothing is amber, pool by pool, and what labels that came later measured."""
    measured = _measured(subject)
    details = None if subject.version is None else subject.version.details.get("risk")
    levels = None if details is None else RiskLevels.from_dict(details)
    pools = () if levels is None else tuple((pool, levels.max_error) for pool in levels.pools if pool.n)
    rows = [_row(pool, promised, measured) for pool, promised in pools]
    known = {pool.name for pool, _ in pools}
    rows += [
        (name, None, _word(name, mine), None, None, None, *_figures(mine))
        for name in sorted({row.name for row in measured} - known)
        for mine in [[row for row in measured if row.name == name]]
    ]
    return Figure(
        "flag-promise",
        "What may be left alone",
        "If every amber place is put right, on average at most the promised share of a task's entities is wrong or "
        "missing. The level rests on labels made without a prelabel; measured are labels that came after it, with an "
        "interval that holds on all days at once with probability 95 %.",
        columns(
            "Pool",
            "Promised",
            "Guarantee",
            "Labels it rests on",
            "Flagged from a doubt of",
            "95 % bound when fitted",
            "Later labels",
            "Measured",
            "95 % from",
            "95 % to",
            count=[3, 6],
            share=[1, 4, 5, 7, 8, 9],
        ),
        tuple(rows),
        "No level of your own yet: flags are those of the starter calibration, or everything is flagged. Label blank "
        "tasks (those without a prelabel); the first promise needs about as many as one over SURESPAN_MAX_ERROR."
        if subject.settings.risk_rule is not None
        else "Flags mark every span with several labels, which promises nothing about the rest (SURESPAN_FLAGS=sets).",
    )


def _row(pool: RiskPool, promised: str, measured: list[CoverageRow]) -> tuple[Any, ...]:
    mine = [row for row in measured if row.name == pool.name and row.guarantee == Guarantee.OWN]
    word = Guarantee.OWN if pool.calibrated else Guarantee.NONE
    level = pool.level if pool.level <= 1.0 else None  # above 1 nothing is flagged
    return (pool.name, float(promised), word.value, pool.n, level, pool.bound, *_figures(mine))


def _measured(subject: Subject) -> list[CoverageRow]:
    if subject.model is None:
        return []
    rows = coverage_rows(
        subject.session, subject.project.id, model_id=subject.model.id, since=subject.since, scope=RISK
    )
    return [row for row in rows if row.kind == Evidence.BLIND]


def _word(name: str, rows: list[CoverageRow]) -> str:
    return next(row.guarantee for row in rows if row.name == name)


def _figures(rows: list[CoverageRow]) -> tuple[Any, ...]:
    sums = add_up(rows)
    if not sums["total"]:
        return (0, None, None, None)
    return (sums["total"], sums["size"] / MILLION / sums["total"], *loss_interval(sums))


MAKERS: dict[str, Callable[[Subject], Figure]] = {"flag-promise": flag_promise}
