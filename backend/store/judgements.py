"""Judgements of what was shown, and their counters: each label counts once, and takes its judgement back when it goes.

Counters are kept by day, version, kind of evidence and stratum (or class, or what became of flags), so that a page
reads a bounded number of rows however many labels there are. What is judged of a task is, in every pool that it
touches, one of its units there, drawn by lot: then each label counts once in a pool, and the laws of tasks hold. All
its units, and the text as a whole, are counted beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field, replace
from datetime import date
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.store.engine import database_now
from backend.store.tables import CoverageCount, Judgement
from backend.store.upsert import insert

EXCLUDED = "excluded"  # the kind of labels that may not calibrate: what was shown is judged all the same
STRATUM, CLASS, FLAG, UNITS, WHOLE, RISK = "stratum", "class", "flag", "units", "whole", "risk"
MILLION = 1_000_000  # losses are counted in millionths, so that taking one back leaves no rest
_SUMS = ("tasks", "total", "covered", "shown", "accepted", "open", "empty", "singleton", "size")
_KEY = ("project_id", "model_id", "day", "version_id", "kind", "scope", "name")


@dataclass(frozen=True)
class JudgedUnit:
    """How the set of one unit did: whether it holds its label, who answered for it with which word, and its size."""

    stratum: str
    pool: str
    n: int
    guarantee: str
    covered: bool | None
    is_open: bool
    size: int | None


@dataclass(frozen=True)
class JudgedRisk:
    """What the flags in view left behind in a task: `loss` is the share of its entities that were wrong or missing.

    Who answered for the level, on how many labels and with which word, and what was promised.
    """

    pool: str
    n: int
    guarantee: str
    max_error: str
    loss: float


@dataclass(frozen=True)
class Judged:
    """How the set in view did on the label of a task.

    `covered`: the set holds the label; `shown`: one of the labelings that were listed is the label; None where that
    cannot be known. `accepted`: the label is the best labeling. `classes` counts (entities, those whose class was in
    their span's set); `flags` counts flagged spans by what became of them. Of a text of several units, what is said of
    a set is about the unit drawn in the first pool that it touches, `others` are those drawn in its other pools;
    `units` counts all of them, and those whose set holds their label, and `whole` says whether all do. `shown` and
    `accepted` are of the whole text.
    """

    task_id: int
    model_id: int
    project_id: int
    label_revision: int
    version_id: int
    day: date
    kind: str
    stratum: str
    pool: str
    n: int
    alpha: str
    guarantee: str
    covered: bool | None
    shown: bool | None
    accepted: bool
    is_open: bool
    size: int | None
    classes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    flags: Mapping[str, int] = field(default_factory=dict)
    units: tuple[int, int] | None = None
    whole: bool | None = None
    others: tuple[JudgedUnit, ...] = ()
    risk: JudgedRisk | None = None

    @property
    def drawn(self) -> tuple[JudgedUnit, ...]:
        """The unit drawn in each pool."""
        mine = (self.stratum, self.pool, self.n, self.guarantee, self.covered, self.is_open, self.size)
        return (JudgedUnit(*mine), *self.others)

    @property
    def findings(self) -> dict[str, Any]:
        """What is counted, as JSON values."""
        return {
            "covered": self.covered,
            "shown": self.shown,
            "accepted": self.accepted,
            "open": self.is_open,
            "size": self.size,
            "classes": {name: list(counts) for name, counts in sorted(self.classes.items())},
            "flags": dict(sorted(self.flags.items())),
            **({} if self.units is None else {"units": list(self.units), "whole": self.whole}),
            **({} if not self.others else {"others": [list(astuple(each)) for each in self.others]}),
            **({} if self.risk is None else {"risk": list(astuple(self.risk))}),
        }


def kind_of(evidence: str, exclusion: str | None) -> str:
    """Return the kind a label is counted under: its evidence, or `excluded`.

    >>> kind_of("blind", None), kind_of("assisted", "queue")
    ('blind', 'excluded')
    """
    return EXCLUDED if exclusion else evidence


def record_judgement(session: Session, judged: Judged) -> bool:
    """Count a judgement; one of the same task and model is taken back first. Returns False when it was counted already.

    The caller holds the task's lock, or is the only one who judges the project.
    """
    row = session.get(Judgement, (judged.task_id, judged.model_id), populate_existing=True)
    if row is not None:
        known = _judged(row)
        if known == judged:
            return False
        _count(session, known, -1)
        session.delete(row)
        session.flush()
    session.add(
        Judgement(
            task_id=judged.task_id,
            model_id=judged.model_id,
            project_id=judged.project_id,
            label_revision=judged.label_revision,
            version_id=judged.version_id,
            day=judged.day,
            kind=judged.kind,
            stratum=judged.stratum,
            pool=judged.pool,
            n=judged.n,
            alpha=judged.alpha,
            guarantee=judged.guarantee,
            findings=judged.findings,
            judged_at=database_now(session),
        )
    )
    session.flush()
    _count(session, judged, 1)
    return True


def retract_judgement(session: Session, task_id: int, *, model_id: int) -> bool:
    """Take the judgement of a task back: its label no longer says what was judged. Returns whether there was one."""
    row = session.get(Judgement, (task_id, model_id), populate_existing=True)
    if row is None:
        return False
    _count(session, _judged(row), -1)
    session.delete(row)
    session.flush()
    return True


def rekind_judgement(session: Session, task_id: int, *, model_id: int, kind: str) -> bool:
    """Count a judgement under another kind: late news about the order of the work changed what its label is worth."""
    row = session.get(Judgement, (task_id, model_id), populate_existing=True)
    if row is None or row.kind == kind:
        return False
    return record_judgement(session, replace(_judged(row), kind=kind))


@dataclass(frozen=True)
class CoverageRow:
    """Counters added up over days (and, where the caller asks for it, versions); see `tables.CoverageCount`."""

    scope: str
    name: str
    kind: str
    version_id: int
    pool: str
    n: int
    alpha: str
    guarantee: str
    tasks: int
    total: int
    covered: int
    shown: int
    accepted: int
    open: int
    empty: int
    singleton: int
    size: int


def coverage_rows(
    session: Session, project_id: int, *, model_id: int, since: date | None = None, scope: str | None = None
) -> list[CoverageRow]:
    """Return the counters of (project, model) by scope, name, kind and version, added up over days."""
    names = ("scope", "name", "kind", "version_id", "pool", "n", "alpha", "guarantee")
    columns = [getattr(CoverageCount, name) for name in names]
    query = (
        sa.select(*columns, *(sa.func.sum(getattr(CoverageCount, name)) for name in _SUMS))
        .where(CoverageCount.project_id == project_id, CoverageCount.model_id == model_id)
        .group_by(*columns)
    )
    if since is not None:
        query = query.where(CoverageCount.day >= since)
    if scope is not None:
        query = query.where(CoverageCount.scope == scope)
    width = len(names)
    rows = [CoverageRow(*row[:width], *(int(value) for value in row[width:])) for row in session.execute(query)]
    kept = [row for row in rows if row.tasks or row.total]
    return sorted(kept, key=lambda row: (row.scope, row.name, row.kind, row.version_id))


def count_days(session: Session, project_id: int, *, model_id: int, since: date) -> list[tuple[date, str, int, int]]:
    """Return (day, kind, labels with a known answer, covered) by day: a line over time for a page."""
    rows = session.execute(
        sa.select(
            CoverageCount.day,
            CoverageCount.kind,
            sa.func.sum(CoverageCount.total),
            sa.func.sum(CoverageCount.covered),
        )
        .where(
            CoverageCount.project_id == project_id,
            CoverageCount.model_id == model_id,
            CoverageCount.scope == STRATUM,
            CoverageCount.day >= since,
        )
        .group_by(CoverageCount.day, CoverageCount.kind)
    )
    return sorted((day, kind, int(total), int(covered)) for day, kind, total, covered in rows if total)


def _judged(row: Judgement) -> Judged:
    findings = row.findings
    return Judged(
        task_id=row.task_id,
        model_id=row.model_id,
        project_id=row.project_id,
        label_revision=row.label_revision,
        version_id=row.version_id,
        day=row.day,
        kind=row.kind,
        stratum=row.stratum,
        pool=row.pool,
        n=row.n,
        alpha=row.alpha,
        guarantee=row.guarantee,
        covered=findings["covered"],
        shown=findings["shown"],
        accepted=findings["accepted"],
        is_open=findings["open"],
        size=findings["size"],
        classes={name: (total, covered) for name, (total, covered) in findings["classes"].items()},
        flags=findings["flags"],
        units=None if "units" not in findings else (findings["units"][0], findings["units"][1]),
        whole=findings.get("whole"),
        others=tuple(JudgedUnit(*each) for each in findings.get("others", ())),
        risk=None if findings.get("risk") is None else JudgedRisk(*findings["risk"]),
    )


def _count(session: Session, judged: Judged, sign: int) -> None:
    key = {
        "project_id": judged.project_id,
        "model_id": judged.model_id,
        "day": judged.day,
        "version_id": judged.version_id,
        "kind": judged.kind,
    }
    about = {"pool": "", "n": 0, "alpha": judged.alpha, "guarantee": ""}
    rows = [
        key
        | {"scope": STRATUM, "name": unit.stratum, "pool": unit.pool, "n": unit.n}
        | {"alpha": judged.alpha, "guarantee": unit.guarantee}
        | _scaled(_unit_sums(judged, unit), sign)
        for unit in judged.drawn
    ]
    rows += [
        key | {"scope": CLASS, "name": name} | about | _scaled({"tasks": 1, "total": total, "covered": covered}, sign)
        for name, (total, covered) in sorted(judged.classes.items())
    ]
    rows += [
        key | {"scope": FLAG, "name": name} | about | _scaled({"total": count}, sign)
        for name, count in sorted(judged.flags.items())
    ]
    if judged.risk is not None:
        risk = judged.risk
        sums = {"tasks": 1, "total": 1, "covered": int(risk.loss == 0), "size": round(MILLION * risk.loss)}
        about_risk = {"pool": risk.pool, "n": risk.n, "alpha": risk.max_error, "guarantee": risk.guarantee}
        rows.append(key | {"scope": RISK, "name": risk.pool} | about_risk | _scaled(sums, sign))
    total, covered = judged.units or (int(judged.covered is not None), int(bool(judged.covered)))
    whole = judged.covered if judged.units is None else judged.whole
    sums = {"tasks": 1, "total": total, "covered": covered}
    rows.append(key | {"scope": UNITS, "name": ""} | about | _scaled(sums, sign))
    sums = {"tasks": 1, "total": int(whole is not None), "covered": int(bool(whole))}
    sums |= {"shown": int(bool(judged.shown)), "accepted": int(judged.accepted)}
    rows.append(key | {"scope": WHOLE, "name": ""} | about | _scaled(sums, sign))
    statement = insert(session, CoverageCount)
    more = {name: getattr(CoverageCount, name) + getattr(statement.excluded, name) for name in _SUMS}
    # The pool of a stratum may differ with the text's other strata: the fewest labels say the least.
    fewest = sa.case((statement.excluded.n < CoverageCount.n, statement.excluded.n), else_=CoverageCount.n)
    statement = statement.on_conflict_do_update(index_elements=list(_KEY), set_=more | {"n": fewest})
    session.connection().execute(statement, rows)


def _unit_sums(judged: Judged, unit: JudgedUnit) -> dict[str, int]:
    return {
        "tasks": 1,
        "total": int(unit.covered is not None),
        "covered": int(bool(unit.covered)),
        "shown": int(bool(judged.shown)),
        "accepted": int(judged.accepted),
        "open": int(unit.is_open),
        "empty": int(unit.size == 0),
        "singleton": int(unit.size == 1),
        "size": 0 if unit.size is None else unit.size,
    }


def _scaled(sums: Mapping[str, int], sign: int) -> dict[str, int]:
    return {name: sign * sums.get(name, 0) for name in _SUMS}


def add_up(rows: Iterable[CoverageRow]) -> dict[str, int]:
    """Add counters up over whatever the rows differ in."""
    sums = dict.fromkeys(_SUMS, 0)
    for row in rows:
        for name in _SUMS:
            sums[name] += getattr(row, name)
    return sums
