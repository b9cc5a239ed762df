"""Labelings cut into segments, with a say on each segment: which exist, how many, and the likeliest of them.

A labeling of a text is a row of segments: tokens outside, and entities (a, b, w). A lattice allows some entities, and
makes some spans mandatory: those must be entities, of an allowed class. Whether a labeling belongs is decided segment
by segment, so the labelings are the paths of a graph and are counted exactly by one pass over the tokens (METHODS 7.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from conformal.labels import LabelSpace
from conformal.quantile import Bools, Floats
from conformal.subsequence import Ints, list_spans
from conformal.trellis import Potentials


@dataclass(frozen=True, eq=False)
class Lattice:
    """Allowed entities as (start, end, class) columns, and the spans that must be entities."""

    starts: Ints  # (S,)
    ends: Ints  # (S,)
    classes: Ints  # (S,) position in LabelSpace.classes
    mandatory: tuple[tuple[int, int], ...] = ()

    def pruned(self) -> Lattice | None:
        """Leave out entities that cross a mandatory span; None when no labeling can hold all mandatory spans."""
        kept = np.ones(self.starts.size, dtype=np.bool_)
        for start, end in self.mandatory:
            same = (self.starts == start) & (self.ends == end)
            if not np.any(same & kept):
                return None
            kept &= same | (self.ends <= start) | (self.starts >= end)
        return Lattice(self.starts[kept], self.ends[kept], self.classes[kept], self.mandatory)

    def count(self, potentials: Potentials) -> int:
        """Return the exact number of labelings with positive probability whose every segment is allowed.

        One pass over the tokens: the number of ways to label the first j tokens, by the label of the last of them.
        The entities' own probabilities must be positive. Grows with the number of allowed entities.
        """
        chosen = self.pruned()
        if chosen is None:
            return 0
        N, L = potentials.length, potentials.label_count
        if N == 0:
            return 1
        chain = potentials.chain
        moves = np.isfinite(chain.moves_from)  # (2, from, to)
        outside = np.isfinite(potentials.emissions[:, 0])
        for start, end in chosen.mandatory:
            outside[start:end] = False
        arriving: list[list[tuple[int, int]]] = [[] for _ in range(N + 1)]
        for start, end, w in zip(chosen.starts.tolist(), chosen.ends.tolist(), chosen.classes.tolist(), strict=True):
            arriving[end].append((start, w))
        follows = [[[y for y in range(L) if moves[k, y, x]] for x in range(L)] for k in range(2)]
        ways: list[list[int]] = [[0] * L for _ in range(N + 1)]

        def entering(at: int, label: int) -> int:
            if at == 0:
                return int(np.isfinite(chain.start[label]))
            before = ways[at]
            return sum(before[y] for y in follows[int(potentials.kinds[at])][label])

        for j in range(1, N + 1):
            here = ways[j]
            if outside[j - 1]:
                here[0] = entering(j - 1, 0)
            for start, w in arriving[j]:
                here[1 + 2 * w + (j - start > 1)] += entering(start, 1 + 2 * w)
        return sum(ways[N][y] for y in range(L) if np.isfinite(chain.end[y]))

    def relax(self, potentials: Potentials, space: LabelSpace) -> Potentials | None:
        """Return a chain that holds every labeling of the lattice and as few others as labels alone can tell.

        A token gets only the labels that some allowed entity through it needs; None when nothing is left. Scores are
        unchanged, probabilities are conditional.
        """
        chosen = self.pruned()
        if chosen is None:
            return None
        N = potentials.length
        allowed = np.zeros((N, len(space)), dtype=np.bool_)
        allowed[:, 0] = True
        for start, end in chosen.mandatory:
            allowed[start:end, 0] = False
        for start, end, w in zip(chosen.starts.tolist(), chosen.ends.tolist(), chosen.classes.tolist(), strict=True):
            allowed[start, 1 + 2 * w] = True
            allowed[start + 1 : end, 2 + 2 * w] = True
        emissions = np.where(allowed, potentials.emissions, -np.inf)
        if N and not np.isfinite(emissions).any(axis=1).all():
            return None
        return potentials.chain.potentials(emissions, boundaries=potentials.boundaries)


@dataclass(frozen=True, eq=False)
class SpanValues:
    """A value for every entity (a, b, w) of a text that can occur, and one for leaving out each of some spans.

    `inside` maps (a, b, w) to the class term; entities that are not listed have value `beyond`. `left_out` maps (a, b)
    to the term a labeling pays that has no entity exactly there.
    """

    inside: dict[tuple[int, int, int], float]
    left_out: dict[tuple[int, int], float]
    beyond: float = np.inf

    def worst(self, labels: npt.NDArray[np.int16]) -> Floats:
        """Return, for labelings (K, N), the largest term of each; 0 where there is none (METHODS 7.3)."""
        count = labels.shape[0]
        rows, starts, ends, classes = list_spans(labels)
        result: Floats = np.zeros(count)
        terms = np.array(
            [
                self.inside.get(key, self.beyond)
                for key in zip(starts.tolist(), ends.tolist(), classes.tolist(), strict=True)
            ],
            dtype=np.float64,
        )
        np.maximum.at(result, rows, terms)
        if self.left_out:
            result = np.maximum(result, self._outside(rows, starts, ends, count))
        return result

    def _outside(self, rows: Ints, starts: Ints, ends: Ints, count: int) -> Floats:
        spans = sorted(self.left_out)
        column = {span: i for i, span in enumerate(spans)}
        held = np.zeros((count, len(spans)), dtype=np.bool_)
        for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
            at = column.get((start, end))
            if at is not None:
                held[row, at] = True
        values = np.array([self.left_out[span] for span in spans])
        return np.asarray(np.where(held, 0.0, values).max(axis=1))


def lattice_of(values: SpanValues, keeps: Sequence[bool] | Bools, *, mandatory: Sequence[tuple[int, int]]) -> Lattice:
    """Make the lattice of the listed entities for which `keeps` is True."""
    kept = [key for key, keep in zip(values.inside, keeps, strict=True) if keep]
    starts, ends, classes = np.array(kept, dtype=np.int64).reshape(-1, 3).T
    return Lattice(starts, ends, classes, tuple(mandatory))
