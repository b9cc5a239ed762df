"""Drift: a betting martingale on online ranks (METHODS 8.7).

While scores are exchangeable the online p-values are independent and uniform, so the wealth of a gambler
who bets against them is a martingale that starts at 1: it ever reaches 20 with probability at most 1/20
(Ville). Rows come in hash order and, once consumed, never change; a new model starts a new martingale.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from conformal.errors import InvalidArgument, InvalidScores
from conformal.quantile import Floats, checked_scores, checked_u
from conformal.trellis.jit import kernel

JUMP = 0.01
ALARM = 20.0


class RankStream:
    """Scores seen so far, ready to rank the next one: O(log n) amortised per update.

    Sorted runs whose lengths are distinct powers of two, merged as in a binary counter.

    >>> stream = RankStream()
    >>> [round(stream.p_value(score, v=0.5), 3) for score in (1.0, 2.0, 0.5)]
    [0.5, 0.25, 0.833]
    """

    def __init__(self, scores: npt.ArrayLike = ()) -> None:
        given = np.sort(checked_scores(scores).ravel())
        self._runs: list[Floats] = []
        at = 0
        for bit in reversed(range(given.size.bit_length())):
            if given.size >> bit & 1:
                self._runs.append(given[at : at + (1 << bit)])
                at += 1 << bit

    def __len__(self) -> int:
        return sum(run.size for run in self._runs)

    def counts(self, score: float) -> tuple[int, int]:
        """Return how many scores are greater, and how many equal."""
        greater = equal = 0
        for run in self._runs:
            left = int(np.searchsorted(run, score, side="left"))
            right = int(np.searchsorted(run, score, side="right"))
            greater += run.size - right
            equal += right - left
        return greater, equal

    def p_value(self, score: float, *, v: float) -> float:
        """Rank a new score among those before it, then remember it; `v` is its draw in [0, 1)."""
        value = float(checked_scores(score, "score"))
        draw = float(checked_u(v))
        greater, equal = self.counts(value)
        p = (greater + draw * (1 + equal)) / (len(self) + 1)
        self._runs.append(np.array([value]))
        while len(self._runs) > 1 and self._runs[-1].size == self._runs[-2].size:
            last, before = self._runs.pop(), self._runs.pop()
            self._runs.append(np.sort(np.concatenate([before, last]), kind="stable"))
        return p

    def sorted_scores(self) -> Floats:
        """Return all scores, ascending."""
        return np.sort(np.concatenate(self._runs)) if self._runs else np.zeros(0)


@dataclass(frozen=True)
class Jumper:
    """The simple jumper: capital spread over bets `1 + eps (p - 1/2)`, eps in {-1, 0, 1}; a state of six numbers.

    Before each bet a share `jump` of the capital is spread evenly again, so that a bet that was wrong for
    long can turn. `log_wealth` is that of the whole capital, `peak` the highest it has been.

    >>> state = Jumper()
    >>> for p in (0.01, 0.02, 0.03, 0.01):
    ...     state = state.bet(p)
    >>> state.steps, round(state.log_wealth, 3)
    (4, 0.668)
    """

    shares: tuple[float, float, float] = (1 / 3, 1 / 3, 1 / 3)  # of the capital on eps = -1, 0, 1
    log_wealth: float = 0.0
    peak: float = 0.0
    steps: int = 0

    def bet(self, p: float, *, jump: float = JUMP) -> Jumper:
        """Return the state after the p-value `p`."""
        if not 0.0 <= p <= 1.0:
            raise InvalidArgument(f"expected a p-value between 0 and 1, got {p}")
        x = p - 0.5
        after = [
            ((1 - jump) * share + jump / 3) * (1 + eps * x) for eps, share in zip((-1, 0, 1), self.shares, strict=True)
        ]
        growth = after[0] + after[1] + after[2]
        log_wealth = self.log_wealth + math.log(growth)
        return Jumper(
            (after[0] / growth, after[1] / growth, after[2] / growth),
            log_wealth,
            max(self.peak, log_wealth),
            self.steps + 1,
        )

    def alarmed(self, *, strata: int = 1) -> bool:
        """Whether the wealth has ever reached 20, or 20m when m strata are watched at once."""
        if strata < 1:
            raise InvalidArgument(f"expected at least one stratum, got {strata}")
        return self.peak >= math.log(ALARM * strata)

    def to_dict(self) -> dict[str, Any]:
        """Return the state as JSON values, exactly: numbers as hexadecimal floats."""
        return {
            "format": "surespan-jumper",
            "version": 1,
            "shares": [share.hex() for share in self.shares],
            "log_wealth": self.log_wealth.hex(),
            "peak": self.peak.hex(),
            "steps": self.steps,
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Jumper:
        """Read `to_dict` back; raises `InvalidScores` if it is damaged."""
        try:
            if (state["format"], state["version"]) != ("surespan-jumper", 1):
                raise InvalidScores("expected a jumper of version 1, got another")
            a, b, c = (float.fromhex(share) for share in state["shares"])
            return cls((a, b, c), float.fromhex(state["log_wealth"]), float.fromhex(state["peak"]), int(state["steps"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidScores(f"expected a stored jumper, got a damaged one: {error}") from None


@dataclass
class Martingale:
    """A rank stream and a jumper: feed it audit rows in hash order, each once."""

    stream: RankStream = field(default_factory=RankStream)
    state: Jumper = field(default_factory=Jumper)

    def update(self, score: float, *, v: float) -> float:
        """Consume one row and return its online p-value; `v` is `hash_u(secret, project, task, "martingale")`."""
        p = self.stream.p_value(score, v=v)
        self.state = self.state.bet(p)
        return p

    def alarmed(self, *, strata: int = 1) -> bool:
        """Whether the wealth has ever reached 20 (20m for m strata)."""
        return self.state.alarmed(strata=strata)

    def to_dict(self) -> dict[str, Any]:
        """Return the state as JSON values, exactly: the jumper's, and the scores as base64 of float64.

        The jumper's part is small and enough by itself where the consumed scores are kept elsewhere.
        """
        scores = self.stream.sorted_scores().astype("<f8").tobytes()
        return {"jumper": self.state.to_dict(), "scores": base64.b64encode(scores).decode("ascii")}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Martingale:
        """Read `to_dict` back; raises `InvalidScores` if it is damaged."""
        try:
            jumper = Jumper.from_dict(state["jumper"])
            scores = np.frombuffer(base64.b64decode(state["scores"], validate=True), dtype="<f8").astype(np.float64)
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidScores(f"expected a stored martingale, got a damaged one: {error}") from None
        if jumper.steps != scores.size:
            raise InvalidScores(f"expected {jumper.steps} scores, got {scores.size}")
        return cls(RankStream(scores), jumper)


def online_p_values(scores: npt.ArrayLike, v: npt.ArrayLike) -> Floats:
    """Return the online p-values of rows in order: what `RankStream` gives one by one, in O(n log n) together.

    `p_t = (#{i<t: s_i > s_t} + v_t (1 + #{i<t: s_i = s_t})) / t`; scores and v (n,) or (runs, n).
    """
    given = checked_scores(scores)
    draws = np.broadcast_to(checked_u(v), given.shape)
    flat = np.atleast_2d(given)
    result = np.empty(flat.shape)
    for run, (row, draw) in enumerate(zip(flat, draws.reshape(flat.shape), strict=True)):
        _, codes = np.unique(row, return_inverse=True)
        result[run] = _rank_online(codes.astype(np.int64), np.ascontiguousarray(draw))
    return result.reshape(given.shape)


@kernel
def _rank_online(codes: npt.NDArray[np.int64], v: Floats) -> Floats:
    """Online p-values from dense ranks, counting with a Fenwick tree."""
    n = codes.shape[0]
    tree = np.zeros(n + 2, dtype=np.int64)
    seen = np.zeros(n + 1, dtype=np.int64)
    result = np.empty(n)
    for t in range(n):
        code = codes[t]
        at_most = 0
        i = code + 1
        while i > 0:
            at_most += tree[i]
            i -= i & -i
        result[t] = ((t - at_most) + v[t] * (1 + seen[code])) / (t + 1)
        seen[code] += 1
        i = code + 1
        while i <= n:
            tree[i] += 1
            i += i & -i
    return result


def jumper_path(p_values: npt.ArrayLike, *, jump: float = JUMP) -> Floats:
    """Return log wealth after each p-value: (n,) or (runs, n), the same as `Jumper.bet` step by step."""
    given = np.asarray(p_values, dtype=np.float64)
    if not np.all((given >= 0) & (given <= 1)):
        raise InvalidArgument("expected p-values between 0 and 1, got others")
    flat = np.ascontiguousarray(np.atleast_2d(given))
    return _jump(flat, jump).reshape(given.shape)


@kernel
def _jump(p_values: Floats, jump: float) -> Floats:
    runs, n = p_values.shape
    result = np.empty((runs, n))
    for run in range(runs):
        low, flat, high = 1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0
        log_wealth = 0.0
        for t in range(n):
            x = p_values[run, t] - 0.5
            low = ((1 - jump) * low + jump / 3) * (1 + -1.0 * x)
            flat = (1 - jump) * flat + jump / 3
            high = ((1 - jump) * high + jump / 3) * (1 + 1.0 * x)
            growth = low + flat + high
            low, flat, high = low / growth, flat / growth, high / growth
            log_wealth += math.log(growth)
            result[run, t] = log_wealth
    return result
