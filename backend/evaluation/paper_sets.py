"""The paper's integrated sets and the union bound over spans, on decoded texts: heuristics, for comparison.

Sets are looked for among the DETAILED best labelings, as in the paper: a truth beyond them is not covered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import numpy.typing as npt

from backend.evaluation.decoding import DETAILED
from backend.evaluation.study import Judged, Listed, Study
from conformal.evaluation import Outcomes
from conformal.integrated_paper import sidak_thresholds
from conformal.pairs import split_conditional, split_level
from conformal.quantile import Floats, Level, exact_level, threshold
from conformal.scores.raps import raps
from conformal.subsequence import Ints

# Name -> (entity score, how alpha is spent on the entities of a labeling). Naive and conditional spend a part of it on
# the first rank of an entity; conditional takes its second threshold from the entities inside the first (approximate).
VARIANTS = {
    "int. nc1, no Šidák": ("nc1", "none"),
    "int. nc1, Šidák": ("nc1", "sidak"),
    "int. nc2, Šidák": ("nc2", "sidak"),
    "int. nc3, Šidák": ("nc3", "sidak"),
    "int. RAPS+nc1, Šidák": ("raps", "sidak"),
    "int. RAPS+nc2, Šidák": ("raps2", "sidak"),
    "int. naive+nc1, Šidák": ("nc1", "naive"),
    "int. naive+nc2, Šidák": ("nc2", "naive"),
    "int. conditional+nc1, Šidák": ("nc1", "conditional"),
    "int. conditional+nc2, Šidák": ("nc2", "conditional"),
    "int. index, Šidák": ("idx", "sidak"),
    "int. nc1 and index": ("nc1", "half"),
    "span sets, union bound": ("nc1", "union"),
}
_GRID = tuple(product((0.0, 1e-4, 0.001, 0.01, 0.05), (1, 5)))[1:]  # lam = 0 once: the score itself
_SHARES = ("0.1", "0.3", "0.5")


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
        self._tuned: dict[str, tuple[float, int]] = {}
        self._shares: dict[str, str] = {}

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
        base = np.where(p > 0, sums if kind == "raps2" else 1.0 - p, np.inf)
        return np.asarray(raps(base, rank, lam=self.lam, r0=self.r0), np.float32)

    def folded(self, kind: str) -> list[npt.NDArray[np.float32]]:
        """Return, per class, the strangest entity of each listed labeling: (T, DETAILED)."""
        if kind not in self._folded:
            values = self.part_scores(kind)
            codes = self.study.decoded["part.class"]
            kept = {name: held for name, held in self._folded.items() if name == "idx"}  # two at a time, for memory
            worst = [self.study.fold_parts(values, only=codes == w).astype(np.float32) for w in range(self.classes)]
            self._folded = kept | {kind: worst}
        return self._folded[kind]

    def taus(self, kind: str, rule: str, calibration: Ints, alpha: Level, *, first: Floats | None = None) -> Floats:
        """Return thresholds (classes, most + 1) by the number of predicted entities.

        `first` are thresholds on the rank: then only entities inside them are looked at, count by count.
        """
        d = self.study.decoded
        chosen = np.zeros(len(d), np.bool_)
        chosen[calibration] = True
        here = self.true & chosen[d["entity.task"]]
        scores, labels = self.true_scores(kind), d["entity.label"]
        level = exact_level(alpha) / (2 if rule == "half" else 1)
        rows = []
        for w in range(self.classes):
            own = scores[here & (labels == w)]
            if first is not None:
                ranks = self.true_scores("idx")[here & (labels == w)]
                inside = {tau: own[ranks <= tau] for tau in set(first[w].tolist())}
                by_count = {tau: sidak_thresholds(held, level, most=self.most) for tau, held in inside.items()}
                rows.append(np.array([by_count[tau][s] for s, tau in enumerate(first[w].tolist())]))
            elif rule in ("sidak", "half", "naive"):
                rows.append(sidak_thresholds(own, level, most=self.most))
            else:
                each = [level / max(1, s) if rule == "union" else level for s in range(self.most + 1)]
                by_level = {a: float(threshold(own, a)) for a in set(each)}
                rows.append(np.array([by_level[a] for a in each]))
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
        if rule in ("naive", "conditional"):
            return self._two(kind, rule, calibration, test, alpha, share=self._share(name))
        if kind.startswith("raps"):
            self.lam, self.r0 = self._search(kind)
        kept = self.members(kind, self.taus(kind, rule, calibration, alpha), test)
        if rule == "half":
            kept &= self.reach(self.taus("idx", rule, calibration, alpha), test)
        return kept

    def _two(
        self, kind: str, rule: str, calibration: Ints, test: Ints, alpha: str, *, share: str
    ) -> npt.NDArray[np.bool_]:
        """Keep labelings whose entities are within a threshold on the rank and one on the score."""
        split = split_level if rule == "naive" else split_conditional
        alpha1, alpha2 = split(alpha, share)
        first = self.taus("idx", "sidak", calibration, alpha1)
        second = self.taus(kind, rule, calibration, alpha2, first=first if rule == "conditional" else None)
        return self.members("idx", first, test) & self.members(kind, second, test)

    def _share(self, name: str) -> str:
        """Choose the part of alpha that goes to the rank on the tuning part, for small sets at 0.95."""
        if name not in self._shares:
            kind, rule = VARIANTS[name]
            part = self.study.tuning
            sizes = {s: float(self._two(kind, rule, part, part, "0.05", share=s).sum()) for s in _SHARES}
            self._shares[name] = min(sizes, key=lambda share: sizes[share])
        return self._shares[name]

    def _search(self, kind: str) -> tuple[float, int]:
        """Choose lam and r0 of RAPS on the tuning part, for small sets at 0.95."""
        if kind not in self._tuned:
            part = self.study.tuning
            sizes: dict[tuple[float, int], float] = {}
            for self.lam, self.r0 in _GRID:
                self._folded.pop(kind, None)
                kept = self.members(kind, self.taus(kind, "sidak", part, "0.05"), part)
                sizes[self.lam, self.r0] = float(kept.sum(axis=1).mean())
            self._folded.pop(kind, None)
            self._tuned[kind] = min(sizes, key=lambda key: sizes[key])
        return self._tuned[kind]


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
    """Judge sets given by their members among the listed labelings; the truth is covered iff it is one of them.

    The paper defines its sets within the list: the listed part is the whole set.
    """
    members = members & (np.arange(DETAILED) < study.decoded["labeling.listed"][test][:, None])
    rank = study.decoded["task.rank"][test].astype(np.int64)
    within = (rank > 0) & (rank <= DETAILED)
    at = np.clip(rank - 1, 0, DETAILED - 1)[:, None]
    covered = within & np.take_along_axis(members, at, 1)[:, 0]
    place = np.where(covered, np.take_along_axis(members.cumsum(axis=1), at, 1)[:, 0], 0)
    size = members.sum(axis=1).astype(np.int64)
    closed = np.zeros(test.size, np.bool_)
    return Judged(test, Outcomes(covered, size, closed, place), Listed(covered, size, closed))
