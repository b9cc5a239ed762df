"""What a score freezes on the tuning part, and the values it chooses among (METHODS 4.4, 4.5, 4.7, 7.3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from conformal.quantile import Floats, checked_scores

PART = "part "  # before the name of a class, which may be any text
DEFAULT_RANK_SHARE = "0.2"  # the part of alpha that goes to the rank where no list says what is best


@dataclass(frozen=True, eq=False)
class Reference:
    """The distribution function of a score on the tuning part: frozen, so any score made with it stays exact.

    `F(t) = (#{tuning < t} + #{tuning = t}/2 + 1/2) / (m + 1)`, strictly between 0 and 1.

    >>> reference = Reference.of([3.0, 1.0, 1.0])
    >>> reference([0.0, 1.0, 2.0, np.inf]).tolist(), reference.half_steps([0.0, 1.0]).tolist()
    ([0.125, 0.375, 0.625, 0.875], [1, 3])
    """

    scores: Floats  # (m,) ascending

    @classmethod
    def of(cls, scores: npt.ArrayLike) -> Reference:
        """Sort and freeze the tuning part's scores; raises `InvalidScores` on NaN."""
        ordered = np.sort(checked_scores(scores).ravel())
        ordered.setflags(write=False)
        return cls(ordered)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reference) and np.array_equal(self.scores, other.scores)

    def __hash__(self) -> int:
        return hash(self.scores.tobytes())

    def half_steps(self, scores: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return `2 (m + 1) F(t)`, a whole number."""
        given = np.asarray(scores, dtype=np.float64)
        below = np.searchsorted(self.scores, given, side="left")
        return np.asarray(below + np.searchsorted(self.scores, given, side="right") + 1, dtype=np.int64)

    def __call__(self, scores: npt.ArrayLike) -> Floats:
        """Return F at each score."""
        return np.asarray(self.half_steps(scores) / (2 * (self.scores.size + 1)), dtype=np.float64)


_NOTHING = Reference(np.zeros(0))


@dataclass(frozen=True)
class Tuned:
    """What a method froze on the tuning part, disjoint from calibration (METHODS 4.4, 4.5, 4.7, 7.3).

    `lam` and `r0` belong to RAPS; `share` is the part of alpha that goes to the rank (naive, conditional_paper);
    `references` are distribution functions by name: "score" and "other" for joint scores, "part " and a class or "O"
    for the parts of a labeling. The rank cap of `conditional` is the method's `limit`.
    """

    lam: float = 0.0
    r0: int = 1
    share: str = "0.5"
    references: tuple[tuple[str, Reference], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "references", tuple(sorted(self.references, key=lambda item: item[0])))

    def reference(self, name: str) -> Reference:
        """Return a distribution function by name; one without any row says 1/2 of everything."""
        return dict(self.references).get(name, _NOTHING)

    def part(self, label: str) -> Reference:
        """Return G of a class or "O" (METHODS 7.3)."""
        return self.reference(PART + label)


@dataclass(frozen=True)
class Choice:
    """One way to freeze a method: its values and, where the rank is capped, the limit; None leaves that as it is."""

    tuned: Tuned
    limit: int | None = None


@dataclass(frozen=True)
class Grid:
    """Values to choose among; a score looks only at those that it freezes."""

    lams: tuple[float, ...] = (0.0, 1e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 1e-2, 0.1)
    r0s: tuple[int, ...] = (1, 4, 16)
    caps: tuple[int, ...] = ()
    shares: tuple[str, ...] = ("0.02", "0.05", "0.1", "0.2", "0.35", "0.5", "0.65", "0.8", "0.9")
