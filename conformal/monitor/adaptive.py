"""Adaptive conformal inference: a level that follows the misses (METHODS 8.8)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from conformal.errors import InvalidArgument
from conformal.quantile import Level, exact_level


@dataclass(frozen=True)
class AdaptiveLevel:
    """The level to use next: `alpha_(t+1) = alpha_t + gamma (alpha - miss_t)`.

    The miss share of the audited tasks tends to alpha whatever the data do, within
    `(max(alpha, 1-alpha) + gamma) / (gamma T)`; nothing is promised for a finite number of tasks. At or
    below 0 every set is open, at or above 1 every set is empty.

    >>> state = AdaptiveLevel.start("0.1", gamma="0.05")
    >>> state.update(covered=False).current, state.update(covered=True).current
    (Fraction(11, 200), Fraction(21, 200))
    """

    target: Fraction
    gamma: Fraction
    current: Fraction

    @classmethod
    def start(cls, alpha: Level, *, gamma: Level = "0.005") -> AdaptiveLevel:
        """Begin at the target level."""
        target = exact_level(alpha)
        return cls(target, exact_level(gamma), target)

    def update(self, *, covered: bool) -> AdaptiveLevel:
        """Return the state after one audited task."""
        return AdaptiveLevel(self.target, self.gamma, self.current + self.gamma * (self.target - (not covered)))

    @property
    def all_in(self) -> bool:
        """Whether the next set is open."""
        return self.current <= 0

    @property
    def none_in(self) -> bool:
        """Whether the next set is empty."""
        return self.current >= 1

    def to_dict(self) -> dict[str, str]:
        """Return the state as text, exactly."""
        return {"target": str(self.target), "gamma": str(self.gamma), "current": str(self.current)}

    @classmethod
    def from_dict(cls, state: dict[str, str]) -> AdaptiveLevel:
        """Read `to_dict` back."""
        try:
            return cls(Fraction(state["target"]), Fraction(state["gamma"]), Fraction(state["current"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgument(f"expected target, gamma and current as fractions, got {state!r}") from error
