"""Thresholds together with what they are worth: all that a predictor needs to know of labels. Free of torch and SQL."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from backend.domain.flag_rule import FlagPromise
from backend.domain.guarantee import Guarantee
from backend.domain.records import VersionRecord
from backend.prediction.remarks import ADAPTIVE_REMARK, describe_gap
from conformal.errors import InvalidArgument
from conformal.prediction import answering_thresholds
from conformal.risk import RiskLevels
from conformal.scores import Method
from conformal.thresholds import Thresholds

STARTER_VERSION = 0  # the database's own versions start at 1


@dataclass(frozen=True)
class Calibration:
    """Thresholds together with what they are worth and which version they are.

    `fallback` answers where these have too few labels, by counts alone (METHODS 8.2); its sets say what it is worth.
    `remark` is said beside the promise of assisted sets: the measured gap. `risk` are the levels of flags that control
    risk (METHODS 11.4); None where flags mark every span with several labels.
    """

    thresholds: Thresholds
    guarantee: Guarantee
    version: int
    fallback: Calibration | None = None
    remark: str = ""
    risk: RiskLevels | None = None

    def flags_for(self, language: str) -> FlagPromise | None:
        """Return what is flagged in texts of a language and what that promises; None: spans with several labels.

        The level rests on labels made without a prelabel or vouched for alone, whatever the thresholds rest on; before
        there are enough the starter's is borrowed, and without one everything is flagged (METHODS 11.5).
        """
        if self.risk is not None and self.risk.pool(language).calibrated:
            # The starter is no evidence of the project's own.
            word = Guarantee.BORROWED if self.guarantee is Guarantee.BORROWED else Guarantee.OWN
            return _promise(self.risk, language, word)
        if self.fallback is not None and self.fallback.risk is not None:
            borrowed = self.fallback.flags_for(language)
            if borrowed is not None and borrowed.guarantee is not Guarantee.NONE:
                return borrowed
        return None if self.risk is None else _promise(self.risk, language, Guarantee.NONE)

    def guarantee_for(self, *strata: str) -> Guarantee:
        """Return what may be said about the sets of a text whose units are in these strata: the least of them.

        Nothing of a method without a proof.
        """
        return min((self.guarantee_of(stratum, beside=strata) for stratum in strata), key=lambda each: each.strength)

    def guarantee_of(self, stratum: str, *, beside: Sequence[str]) -> Guarantee:
        """Return what may be said about the set of one unit, its text having units in the strata `beside` too."""
        answering = self._answering(stratum, beside)
        if answering.method.worth != "exact" or not answering.pool(stratum, beside=beside).pool.calibrated:
            return Guarantee.NONE
        if answering is self.thresholds or self.fallback is None:
            return self.guarantee
        return self.fallback.guarantee

    def worth_for(self, *strata: str) -> str:
        """Return "exact", or what a method that answers there is instead: approximate or heuristic."""
        worths = [self._answering(stratum, strata).method.worth for stratum in strata]
        return next((worth for worth in worths if worth != "exact"), "exact")

    def _answering(self, stratum: str, beside: Sequence[str]) -> Thresholds:
        fallback = None if self.fallback is None else self.fallback.thresholds
        return answering_thresholds(self.thresholds, fallback, stratum=stratum, beside=beside)


def _promise(levels: RiskLevels, language: str, guarantee: Guarantee) -> FlagPromise:
    pool = levels.pool(language)
    level = 0.0 if guarantee is Guarantee.NONE else pool.level
    return FlagPromise(
        levels.max_error, levels.sure, guarantee, pool.name, pool.n, level, bound=pool.bound, plain=pool.plain
    )


def full_name(method: Method) -> str:
    """Return a method by the name that makes it again, spans included.

    >>> full_name(Method("nc1/nc2")), full_name(Method("nc1"))
    ('nc1/nc2', 'nc1')
    """
    return f"{method.name}/{method.spans}" if method.spans else method.name


def known_method(name: str) -> Method | None:
    """Return a method by its name, None for one that only a later release knows: a way back must not stop anything.

    >>> known_method("nc1").worth, known_method("of-next-year")
    ('exact', None)
    """
    try:
        return Method(name)
    except InvalidArgument:
        return None


def version_method(version: VersionRecord) -> Method:
    """Return the method that a version was fitted with, spans included, without building it.

    Classes with too few labels borrow from a starter of the same method only. Earlier releases kept the name without
    the spans; then the content says it.
    """
    method = Method(version.method)
    if method.spans:
        return method
    try:
        spans = str(json.loads(version.content)["entity_method"]["name"])
        return method if spans == method.span_name else Method(method.name, spans=spans)
    except (ValueError, KeyError, TypeError, InvalidArgument):
        return method


def calibration_of(version: VersionRecord, *, fallback: Calibration | None = None) -> Calibration:
    """Return a stored version as the predictor uses it; `fallback` serves where it has too few labels."""
    gap = version.details.get("gap") or {}
    remark = describe_gap(gap) if version.guarantee == Guarantee.ASSISTED else ""
    if version.details.get("adaptive"):
        remark = f"{remark} {ADAPTIVE_REMARK}".strip()
    thresholds = Thresholds.from_bytes(version.content)
    levels = version.details.get("risk")
    risk = None if levels is None else RiskLevels.from_dict(levels)
    return Calibration(thresholds, Guarantee(version.guarantee), version.id, fallback, remark, risk)
