"""The rule that flags follow, as settings choose it, and what a task's flags promise."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from backend.domain.guarantee import Guarantee


@dataclass(frozen=True)
class RiskRule:
    """Flags that control risk: at most `max_error` of a task's entities are wrong or missing where nothing is flagged.

    On average over tasks and over draws of the labels that decided it; `sure` asks for 95 % of the draws instead.
    """

    max_error: str
    sure: bool = False


@dataclass(frozen=True)
class FlagPromise:
    """What the flags of one text promise, and what that rests on (METHODS 11.5).

    `level` is the least doubt that is flagged, 0 when everything is. `n` counts the labels, made without a prelabel or
    vouched for, that chose it; `bound` holds the true risk with 95 %. `plain` is the level without `sure`.
    """

    max_error: str
    sure: bool
    guarantee: Guarantee
    pool: str
    n: int
    level: float
    bound: float | None = None
    plain: float | None = None

    @property
    def sentence(self) -> str:
        """The promise in words, the same on the terminal, in Label Studio and on pages."""
        share = f"{(Decimal(self.max_error) * 100).normalize():f} %"
        if self.guarantee is Guarantee.NONE:
            return (
                f"No promise: too few labels made without a prelabel ({self.n}) to leave anything alone at {share}, so "
                "everything is to be checked."
            )
        average = "with 95 % certainty at most" if self.sure else "on average at most"
        kept = f"if every amber place is put right, {average} {share} of a task's entities are wrong or missing"
        if self.guarantee is Guarantee.BORROWED:
            return f"No promise of your own yet: on texts like those of the starter calibration, {kept}."
        return f"{kept[0].upper()}{kept[1:]} ({self.n:,} labels made without a prelabel)."

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values; an infinite level, which flags nothing, is null."""
        return {
            "rule": "risk",
            "max_error": self.max_error,
            "sure": self.sure,
            "guarantee": self.guarantee.value,
            "pool": self.pool,
            "n": self.n,
            "level": self.level if self.level <= 1.0 else None,
            "bound_95": self.bound,
            "promise": self.sentence,
        }
