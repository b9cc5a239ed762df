"""Drift: martingales over audit rows, one for everything and one per language where there are several (METHODS 8.7)."""

from __future__ import annotations

import json
import math

import numpy as np
from sqlalchemy.orm import Session

from backend.domain.records import MonitorRecord
from backend.monitoring.alarms import ADVICE
from backend.store.monitor import DRIFT, consumed_scores, load_monitor
from conformal.monitor.martingale import ALARM, Jumper, RankStream

EVERYTHING = ""  # the martingale over all strata


class DriftWatch:
    """Sorted scores and jumpers of one (project, model): over everything, and by language where there are several.

    With m of them watched at once each has to reach 20m, so that all together raise a false alarm with probability of
    at most about 5 %.
    """

    def __init__(self) -> None:
        self.scores: dict[str, RankStream] = {EVERYTHING: RankStream()}
        self.jumpers: dict[str, Jumper] = {EVERYTHING: Jumper()}
        self.revisions: dict[str, int] = {}
        self._changed: set[str] = set()

    @classmethod
    def load(cls, session: Session, project_id: int, model_id: int) -> DriftWatch:
        """Read what was consumed, and where each jumper stands."""
        watch = cls()
        strata, values = consumed_scores(session, project_id, model_id=model_id)
        languages = np.array([language_of(stratum) for stratum in strata], dtype=object)
        for name in {EVERYTHING, *languages.tolist()}:
            mine = values if name == EVERYTHING else values[languages == name]
            watch.scores[name] = RankStream(mine)
            record = load_monitor(session, project_id, model_id=model_id, kind=DRIFT, stratum=name)
            watch.jumpers[name] = Jumper() if record is None else Jumper.from_dict(json.loads(record.state))
            watch.revisions[name] = 0 if record is None else record.revision
        return watch

    @property
    def consumed(self) -> int:
        """How many rows were consumed."""
        return self.jumpers[EVERYTHING].steps

    def update(self, language: str, score: float, *, v: float) -> list[str]:
        """Consume one row; returns the names of the jumpers that reach their alarm with it."""
        alarms = []
        for name in (EVERYTHING, language):
            stream = self.scores.setdefault(name, RankStream())
            before = self.jumpers.setdefault(name, Jumper())
            after = before.bet(stream.p_value(score, v=v))
            self.jumpers[name] = after
            self._changed.add(name)
            # One language alone is everything over again.
            watchers = self.watchers
            if name != EVERYTHING and watchers == 1:
                continue
            if after.alarmed(strata=watchers) and not before.alarmed(strata=watchers):
                alarms.append(name)
        return alarms

    def standing(self) -> list[str]:
        """Return the names of the jumpers that stand at or above their alarm now."""
        enough = math.log(ALARM * self.watchers)
        names = [EVERYTHING] if self.watchers == 1 else sorted(self.jumpers)
        return [name for name in names if self.jumpers[name].log_wealth >= enough]

    @property
    def watchers(self) -> int:
        """How many martingales may raise an alarm."""
        languages = len(self.jumpers) - 1
        return 1 if languages <= 1 else 1 + languages

    def records(self) -> list[tuple[str, MonitorRecord]]:
        """Return the states that changed since the last call."""
        states = []
        for name in sorted(self._changed):
            jumper = self.jumpers[name]
            state = json.dumps(jumper.to_dict()).encode()
            revision = self.revisions.get(name, 0)
            states.append((name, MonitorRecord(DRIFT, name, revision, jumper.steps, wealth(jumper.log_wealth), state)))
        self._changed.clear()
        return states


def language_of(stratum: str) -> str:
    """Return the part of a stratum that drift is watched by.

    >>> language_of("de/11-20"), language_of("seen")
    ('de', 'seen')
    """
    return stratum.split("/", maxsplit=1)[0]


def wealth(log_wealth: float) -> float:
    """Return the martingale's value, held below what a double can say."""
    return math.exp(min(log_wealth, 700.0))


def describe_drift(name: str, jumper: Jumper, *, watchers: int) -> str:
    """Say what a drift alarm means and what to do."""
    where = f"texts in {name}" if name else "the texts"
    return (
        f"Labels of {where} no longer look like the earlier ones (betting score {wealth(jumper.peak):.0f}, alarm at "
        f"{ALARM * watchers:.0f}, after {jumper.steps} audit labels). " + ADVICE[DRIFT]
    )
