"""Labels that are probably wrong, with the share of false alarms under control.

A confirmed label is compared with *reference* labels: labels of randomly drawn texts that are set aside for this.
Its p-value is `(1 + #{reference score >= its score}) / (n + 1)`. For a right label whose text was drawn as the
reference's texts were, and a reference of right labels, it is at most u with probability at most u (METHODS 3.6), and
the p-values that share a reference are positively dependent, under which the step-up procedure of Benjamini and
Hochberg keeps the expected share of right labels in the list below q (Bates, Candes, Lei, Romano, Sesia, "Testing for
outliers with conformal p-values", 2023). A label is never its own reference: ranks within one pool of labels would
make the k-th smallest p-value k/n, and no list at all.

Wrong labels *in the reference* make every p-value larger: the list gets shorter, its promise stays. What shortens it
most are the strangest reference labels that nobody has checked; `worth_checking` names them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from conformal.errors import InvalidArgument, InvalidLabels
from conformal.labels import LabelSpace, Span
from conformal.quantile import Bools, Floats, Level, checked_scores, exact_level
from conformal.trellis import Potentials, token_marginals

Ints = npt.NDArray[np.int64]

_LEAST = 1e-300  # below it a probability is rounding; a label that can be said stays finite
_SEEN, _BAND = 10, 50  # checked labels from which the share of wrong ones among the next is judged


@dataclass(frozen=True)
class Weakest:
    """How strange a label is: `-log` of the least probability that one of its words has its label, and which word."""

    score: float
    token: int | None


def weakest_label(potentials: Potentials, space: LabelSpace, *, spans: Sequence[Span]) -> Weakest:
    """Score a labeling by its least plausible word: exact token marginals, 0 for a text without words.

    The probability of the whole labeling falls with everything that is unsure in a text, also where the label is
    right; a wrong label is wrong at one place. On planted errors this finds many times more (docs/results).

    Raises:
        InvalidLabels: when the spans overlap or lie outside the text.

    >>> space = LabelSpace(["PER"])
    >>> p = Potentials(emissions=[[0.0, 0.0, 0.0]], transitions=np.zeros((3, 3)), start=[0, 0, -np.inf], end=[0] * 3)
    >>> weakest_label(p, space, spans=[Span(0, 1, "PER")])
    Weakest(score=0.693147180559945..., token=0)
    """
    if potentials.length == 0:
        if spans:
            raise InvalidLabels("expected no span in a text without words, got some")
        return Weakest(0.0, None)
    labels = space.ids(spans, potentials.length)
    each = token_marginals(potentials)[np.arange(potentials.length), labels]  # (N,)
    token = int(np.argmin(each))
    return Weakest(float(max(0.0, -np.log(max(float(each[token]), _LEAST)))), token)


@dataclass(frozen=True, eq=False)
class PValues:
    """p-values as whole numbers, `above + 1` of `size + 1`, so that comparisons are exact.

    `above` counts reference scores at least as high; `size` is that of the reference (of its group).
    """

    above: Ints
    size: Ints

    @property
    def values(self) -> Floats:
        """The p-values."""
        return np.asarray((self.above + 1) / (self.size + 1), dtype=np.float64)

    def __len__(self) -> int:
        return int(self.above.size)


def reference_p_values(
    scores: npt.ArrayLike,
    reference: npt.ArrayLike,
    *,
    groups: npt.ArrayLike | None = None,
    reference_groups: npt.ArrayLike | None = None,
) -> PValues:
    """Return the p-value of each score against the reference, or against the reference of its own group.

    Groups must be a function of the text alone. They make a p-value answer for texts that were picked by that
    function, for instance because the model was in doubt.

    >>> reference_p_values([2.5, 9.0], [1.0, 2.0, 3.0]).values.tolist()
    [0.5, 0.25]
    """
    tested, known = checked_scores(scores), checked_scores(reference, "reference")
    if (groups is None) != (reference_groups is None):
        raise InvalidArgument("expected groups of both the scores and the reference, got those of one")
    mine = np.zeros(tested.size, np.int64) if groups is None else np.asarray(groups, np.int64)
    theirs = np.zeros(known.size, np.int64) if reference_groups is None else np.asarray(reference_groups, np.int64)
    if mine.shape != tested.shape or theirs.shape != known.shape:
        raise InvalidArgument("expected one group per score, got another number")
    above, size = np.zeros(tested.size, np.int64), np.zeros(tested.size, np.int64)
    for group in np.unique(mine).tolist():
        here = mine == group
        ordered = np.sort(known[theirs == group])
        size[here] = ordered.size
        above[here] = ordered.size - np.searchsorted(ordered, tested[here], side="left")
    return PValues(above, size)


def discover(p_values: PValues, q: Level) -> Bools:
    """Return which are discoveries at false-discovery rate q (Benjamini and Hochberg's step-up procedure), exactly.

    >>> discover(PValues(np.array([0, 0, 9]), np.array([19, 19, 19])), "0.1").tolist()
    [True, True, False]
    """
    level = exact_level(q)
    m = len(p_values)
    order = np.lexsort((np.arange(m), p_values.values))
    # p_(k) <= q k / m, in whole numbers
    kind = _room(m, p_values.size, level.denominator)
    above, size = p_values.above[order].astype(kind), p_values.size[order].astype(kind)
    k = np.arange(1, m + 1).astype(kind)
    small = np.asarray((above + 1) * m * level.denominator <= level.numerator * k * (size + 1), dtype=np.bool_)
    discovered = np.zeros(m, np.bool_)
    if small.any():
        discovered[order[: int(np.flatnonzero(small)[-1]) + 1]] = True
    return discovered


def worth_checking(reference: npt.ArrayLike, checked: npt.ArrayLike, tested: npt.ArrayLike, q: Level) -> Ints:
    """Return the places of unchecked reference labels whose check can lengthen the list, the strangest first.

    Those down to the lowest score at which there would be discoveries if the unchecked labels above it were wrong: all
    of them while fewer than `_SEEN` of the strangest were checked and found right, afterwards the share of wrong ones
    that the labels just above suggest (strange ones among the tested beside right ones in the reference), because less
    strange labels are less often wrong. So checking ends by itself. The promise does not depend on where it ends.

    >>> worth_checking([5.0, 4.0, 0.1], [False, True, False], [6.0] * 5 + [0.0] * 7, "0.9").tolist()
    [0]
    """
    level = float(exact_level(q))
    known, done, others = checked_scores(reference), np.asarray(checked, np.bool_), np.sort(checked_scores(tested))
    if done.shape != known.shape:
        raise InvalidArgument(f"expected a mark per reference score ({known.size}), got {done.size}")
    order = np.argsort(-known, kind="stable")
    ordered, right = known[order], done[order]
    below = np.append(ordered[1:], 0.0)  # the next reference score, or the plainest that there is
    k = others.size - np.searchsorted(others, below, side="right")  # tested ones that only these places stand above
    seen = int(np.argmin(right)) if not right.all() else right.size  # checked without a gap from the strangest on
    wrong = 1.0
    if _SEEN <= seen < right.size:
        band = min(seen, _BAND)
        inside = k[seen - 1] - (k[seen - band - 1] if seen > band else 0)
        wrong = max(0.0, 1.0 - band * others.size / (max(int(inside), 1) * known.size))
    expected = np.cumsum(np.where(right, 1.0, 1.0 - wrong))
    possible = (expected + 1.0) * others.size <= level * k * (known.size + 1)
    last = int(np.flatnonzero(possible)[-1]) + 1 if possible.any() else 0
    first = order[:last]
    return np.asarray(first[~done[first]], dtype=np.int64)


def _room(m: int, sizes: npt.ArrayLike, denominator: int) -> np.dtype[Any]:
    """Return int64 where products of these fit into it, else Python's own integers."""
    largest = (int(np.max(sizes, initial=0)) + 1) * (m + 1) * denominator
    return np.dtype(np.int64 if largest < 2**62 else object)
