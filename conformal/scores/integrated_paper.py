"""The paper's integrated sets as methods: **heuristic**, kept for comparison (METHODS 7.1).

They have no score of their own: `conformal.integrated_paper` makes them of the sets of spans.
"""

from __future__ import annotations

from conformal.quantile import Floats
from conformal.scores.boundary import Boundary
from conformal.scores.nc1 import NC1
from conformal.scores.ranks import Ranks
from conformal.scores.score import Score, Sets
from conformal.scores.tuned import Tuned


class PaperSets(Score):
    """The labelings whose every entity is in its span's set.

    `sidak`: levels are corrected for the number of predicted entities. `index`: labelings must rank no later than the
    last allowed entity is first found. `by_score`: entities must pass the threshold of their probability score. With
    both, each has half of alpha.
    """

    worth = "heuristic"
    sets = Sets.SPANS
    limit = None
    boundaries = (Boundary.INCLUDE,)

    def __init__(
        self, name: str, *, spans: str, sidak: bool = True, index: bool = False, by_score: bool = True
    ) -> None:
        self.name, self.spans = name, spans
        self.sidak, self.index, self.by_score = sidak, index, by_score

    def values(self, ranks: Ranks, *, tuned: Tuned, limit: int | None) -> Floats:
        """Return nc1, for reports: sets are not cut by it."""
        return NC1.of(ranks)
