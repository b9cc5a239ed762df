"""The paper's integrated sets and the union bound over spans, on decoded texts: heuristics, for comparison.

Sets are looked for among the DETAILED best labelings, as in the paper: a truth beyond them is not covered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product

import numpy as np
import numpy.typing as npt

from backend.evaluation.decoding import DETAILED
from backend.evaluation.study import Judged, Study
from conformal.evaluation import Outcomes
from conformal.integrated_paper import sidak_thresholds
from conformal.quantile import Floats, threshold
from conformal.raps import raps
from conformal.subsequence import Ints

# Name -> (entity score, how alpha is spent on the entities of a labeling).
VARIANTS = {
    "int. nc1, no Šidák": ("nc1", "none"),
    "int. nc1, Šidák": ("nc1", "sidak"),
    "int. nc2, Šidák": ("nc2", "sidak"),
    "int. nc3, Šidák": ("nc3", "sidak"),
    "int. RAPS+nc1, Šidák": ("raps", "sidak"),
    "int. index, Šidák": ("idx", "sidak"),
    "int. nc1 and index": ("nc1", "half"),
    "span sets, union bound": ("nc1", "union"),
}
_GRID = tuple(product((0.001, 0.01, 0.05), (1, 5)))


class PaperSets:
    """Everything that does not depend on a split, worked out once."""

    def __init__(self, study: Study) -> None:
        d = study.decoded
        self.study = study
        self.classes = len(d.classes)
        self.most = int(d["task.predicted"].max(initial=1))
        self.true = d["entity.label"] < self.classes
        self._folded: dict[str, list[npt.NDArray[np.float32]]] = {}
        self.lam, self.r0 = 0.01, 1
        self.lam, self.r0 = self._search()

    def part_scores(self, kind: str) -> npt.NDArray[np.float32]:
        """Score the distinct entities of the listed labelings."""
        d = self.study.decoded
        return self._score(kind, d["part.probability"], d["part.cumulative"], d["part.place"], d["part.rank"])

    def true_scores(self, kind: str) -> Floats:
        """Score the true entities, with "O" rows left in place."""
        d = self.study.decoded
        rank = np.where(d["entity.rank"] > DETAILED, 0, d["entity.rank"])
        return self._score(kind, d["entity.probability"], d["entity.cumulative"], d["entity.place"], rank).astype(
            np.float64
        )

    def _score(
        self, kind: str, p: npt.NDArray[np.float64], sums: Floats, place: Ints, rank: Ints
    ) -> npt.NDArray[np.float32]:
        if kind == "nc1":
            with np.errstate(divide="ignore"):
                return np.asarray(-np.log(p), np.float32)
        if kind == "nc2":
            return np.asarray(np.where(p > 0, sums, np.inf), np.float32)
        if kind == "nc3":
            return np.asarray(np.where(place > 0, place, np.inf), np.float32)
        if kind == "idx":
            return np.asarray(np.where(rank > 0, rank, np.inf), np.float32)
        return np.asarray(raps(1.0 - p, rank, lam=self.lam, r0=self.r0), np.float32)

    def folded(self, kind: str) -> list[npt.NDArray[np.float32]]:
        """Return, per class, the strangest entity of each listed labeling: (T, DETAILED)."""
        if kind not in self._folded:
            values = self.part_scores(kind)
            codes = self.study.decoded["part.class"]
            self._folded = {
                kind: [self.study.fold_parts(values, only=codes == w).astype(np.float32) for w in range(self.classes)]
            }
        return self._folded[kind]

    def taus(self, kind: str, rule: str, calibration: Ints, alpha: str) -> Floats:
        """Return thresholds (classes, most + 1) by the number of predicted entities."""
        d = self.study.decoded
        chosen = np.zeros(len(d), np.bool_)
        chosen[calibration] = True
        here = self.true & chosen[d["entity.task"]]
        scores, labels = self.true_scores(kind), d["entity.label"]
        level = Fraction(alpha) / (2 if rule == "half" else 1)
        rows = []
        for w in range(self.classes):
            own = scores[here & (labels == w)]
            if rule in ("sidak", "half"):
                rows.append(sidak_thresholds(own, level, most=self.most))
            else:
                each = [level / max(1, s) if rule == "union" else level for s in range(self.most + 1)]
                found = {a: float(threshold(own, a)) for a in set(each)}
                rows.append(np.array([found[a] for a in each]))
        return np.stack(rows)

    def members(self, kind: str, taus: Floats, test: Ints) -> npt.NDArray[np.bool_]:
        """Whether each listed labeling of the test tasks is kept: every entity within its class's threshold."""
        s = self.study.decoded["task.predicted"][test]
        kept = np.ones((test.size, DETAILED), np.bool_)
        for w, worst in enumerate(self.folded(kind)):
            kept &= worst[test] <= taus[w, s][:, None].astype(np.float32)
        return kept

    def reach(self, taus: Floats, test: Ints) -> npt.NDArray[np.bool_]:
        """Return C_idx: ranks up to the largest first rank among allowed entities."""
        d = self.study.decoded
        task = d["part.task"]
        allowed = d["part.rank"] <= taus[d["part.class"], d["task.predicted"][task]]
        last = np.ones(len(d), np.int64)
        np.maximum.at(last, task[allowed], d["part.rank"][allowed])
        return np.arange(1, DETAILED + 1) <= last[test][:, None]

    def sets(self, name: str, calibration: Ints, test: Ints, alpha: str) -> npt.NDArray[np.bool_]:
        """Return the members among the listed labelings: (tasks, DETAILED)."""
        kind, rule = VARIANTS[name]
        if kind == "idx":
            return self.reach(self.taus("idx", rule, calibration, alpha), test)
        kept = self.members(kind, self.taus(kind, rule, calibration, alpha), test)
        if rule == "half":
            kept &= self.reach(self.taus("idx", rule, calibration, alpha), test)
        return kept

    def _search(self) -> tuple[float, int]:
        """Choose lam and r0 of RAPS on the tuning part, for small sets at 0.95."""
        part = self.study.tuning
        found: dict[tuple[float, int], float] = {}
        for self.lam, self.r0 in _GRID:
            self._folded = {}
            kept = self.members("raps", self.taus("raps", "sidak", part, "0.05"), part)
            found[self.lam, self.r0] = float(kept.sum(axis=1).mean())
        self._folded = {}
        return min(found, key=lambda key: found[key])


def run_paper(
    study: Study, *, splits: int, alphas: Sequence[str], names: Sequence[str] = tuple(VARIANTS)
) -> Iterator[tuple[str, str, int, Judged]]:
    """Judge the paper's integrated sets: yields (name, alpha, split, sets)."""
    paper = PaperSets(study)
    for name in sorted(names, key=lambda each: VARIANTS[each]):
        for alpha, split in product(alphas, range(splits)):
            calibration, test = study.split(split)
            yield name, alpha, split, judge_listed(study, test, paper.sets(name, calibration, test, alpha))


def judge_listed(study: Study, test: Ints, members: npt.NDArray[np.bool_]) -> Judged:
    """Judge sets given by their members among the listed labelings; the truth is covered iff it is one of them."""
    members = members & (np.arange(DETAILED) < study.decoded["labeling.listed"][test][:, None])
    rank = study.decoded["task.rank"][test].astype(np.int64)
    within = (rank > 0) & (rank <= DETAILED)
    at = np.clip(rank - 1, 0, DETAILED - 1)[:, None]
    covered = within & np.take_along_axis(members, at, 1)[:, 0]
    place = np.where(covered, np.take_along_axis(members.cumsum(axis=1), at, 1)[:, 0], 0)
    closed = np.zeros(test.size, np.bool_)
    return Judged(test, Outcomes(covered, members.sum(axis=1).astype(np.int64), closed, place))
