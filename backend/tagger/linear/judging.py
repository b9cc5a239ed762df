"""What held-out labels say about a linear chain: whether a network's knowledge helps, and how far to trust it.

Nothing that is looked at here was learnt from by the model that is judged (METHODS 13.7).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

import conformal
from backend.tagger.entity_f1 import EntityCounter
from backend.tagger.linear.chains import Chains
from backend.tagger.linear.course import Course
from backend.tagger.linear.fitting import Recipe, fit
from backend.tagger.linear.kernels import Floats, chain_losses
from backend.tagger.linear.objective import Examples, Weights, chain_scores, score_tokens
from conformal.labels import LabelSpace
from conformal.trellis.potentials import Chain

_LEAST_GROUPS = 5  # with fewer texts (or sentences) nothing is held out
_LITTLE, _MUCH = 80_000, 200_000  # tokens times labels: five folds up to the first, three up to the second, then one
_USUAL_TEMPERATURE = 0.6  # where nothing is held out: about what small samples ask for
_LEAST_TO_JUDGE = 20  # held-out sentences that may speak against a network,
_CLEARLY = 2.0  # by this many standard errors of their mean difference in log-loss
_TEMPERATURES = (0.05, 1.0)  # never surer than the fit itself, however few labels agree


@dataclass(frozen=True)
class Report:
    """What held-out labels say: log-loss a sentence and entity F1, None where nothing was held out."""

    texts: int
    sentences: int
    features: int
    left_out: dict[str, int]
    uses_base: bool
    temperature: float
    folds: int
    held_loss: float | None
    held_f1: float | None
    held_loss_without_base: float | None

    def to_json(self) -> dict[str, Any]:
        """Return this as it is written with the model."""
        return asdict(self)


def without_dense(examples: Examples) -> Examples:
    """Return examples with their sparse features alone."""
    return replace(examples, dense=np.zeros((len(examples.labels), 0), np.float32))


@dataclass(frozen=True)
class _Held:
    """Scores of held-out chains by models that did not see them."""

    parts: list[tuple[Examples, Floats, Weights]]
    space: LabelSpace

    def loss(self, temperature: float) -> float:
        """Return the mean log-loss of a sentence."""
        return float(self.losses(temperature).mean())

    def losses(self, temperature: float) -> Floats:
        """Return the log-loss of every sentence."""
        found = []
        for examples, emissions, weights in self.parts:
            L = len(self.space)
            losses = np.empty(len(examples.chains) - 1)
            waste = np.zeros((L, L)), np.zeros(L), np.zeros(L)
            moves, start, end = chain_scores(weights, self.space)
            scores = emissions * temperature
            chain_losses(
                scores,
                examples.chains,
                examples.labels,
                moves * temperature,
                start * temperature,
                end * temperature,
                losses,
                np.empty_like(scores),
                *waste,
            )
            found.append(losses)
        return np.concatenate(found)

    def best_temperature(self) -> float:
        """Return the temperature of the least loss, which is convex in it: golden section."""
        low, high = _TEMPERATURES
        ratio = (np.sqrt(5.0) - 1.0) / 2.0
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        loss_a, loss_b = self.loss(a), self.loss(b)
        while high - low > 0.01:
            if loss_a <= loss_b:
                high, b, loss_b = b, a, loss_a
                a = high - ratio * (high - low)
                loss_a = self.loss(a)
            else:
                low, a, loss_a = a, b, loss_b
                b = low + ratio * (high - low)
                loss_b = self.loss(b)
        return float((low + high) / 2.0)

    def f1(self) -> float:
        """Return the entity F1 of the best labelings."""
        counter = EntityCounter()
        for examples, emissions, weights in self.parts:
            moves, start, end = chain_scores(weights, self.space)
            chain = Chain(transitions=moves, start=start, end=end)
            bounds = list(zip(examples.chains[:-1], examples.chains[1:], strict=True))
            found = conformal.kbest([chain.potentials(emissions[a:b]) for a, b in bounds], 1, threads=1)
            for (a, b), best in zip(bounds, found, strict=True):
                counter.add(self.space.spans(examples.labels[a:b]), self.space.spans(best.labels[0]))
        return counter.total.f1


def _folds(chains: Chains, space: LabelSpace, rng: np.random.Generator) -> list[npt.NDArray[np.bool_]]:
    """Return which chains each fold holds out; texts that read alike, and sentences of one text, go together.

    One long text is its sentences: where there are few texts, sentences are held out one by one.
    """
    groups = chains.groups if len(np.unique(chains.groups)) >= _LEAST_GROUPS else np.arange(len(chains.groups))
    names = np.unique(groups)
    if len(names) < _LEAST_GROUPS:
        return []
    work = len(chains.examples.labels) * len(space)
    count = 3 if _LITTLE < work <= _MUCH else 5
    number = np.empty(int(groups.max()) + 1, np.int64)
    number[rng.permutation(names)] = np.arange(len(names)) % count
    folds = [number[groups] == k for k in range(count)]
    return folds if work <= _MUCH else folds[:1]


def judge(
    chains: Chains,
    space: LabelSpace,
    *,
    recipe: Recipe,
    centre: Floats | None,
    course: Course,
    begin: float,
    end: float,
) -> Report:
    """Fit on the rest of each fold and look at what it holds out.

    Chains with dense features have them from a network; `centre` is where its weights are drawn to. On its course this
    takes the way from `begin` to `end`.
    """
    has_base = chains.examples.dense.shape[1] > 0
    folds = _folds(chains, space, np.random.default_rng([recipe.seed, 13]))

    def report(uses_base: bool, temperature: float, held: _Held | None, other: float | None) -> Report:
        return Report(
            texts=chains.texts,
            sentences=len(chains.groups),
            features=len(chains.known),
            left_out=dict(sorted(chains.left_out.items())),
            uses_base=uses_base,
            temperature=temperature,
            folds=len(folds),
            held_loss=None if held is None else held.loss(temperature),
            held_f1=None if held is None else held.f1(),
            held_loss_without_base=other,
        )

    if not folds:
        return report(has_base, _USUAL_TEMPERATURE, None, None)

    way = np.linspace(begin, end, len(folds) + has_base + 1).tolist()
    number = iter(range(len(way) - 1))

    def held_out(examples: Examples, drawn_to: Floats | None, which: list[npt.NDArray[np.bool_]], part: str) -> _Held:
        held = _Held([], space)
        for fold in which:
            k = next(number)
            tell = course.fit(f"{part}, {k + 1} of {len(way) - 1}", way[k], way[k + 1], most=recipe.steps)
            known = examples.take(np.flatnonzero(~fold))
            weights = fit(known, space, features=len(chains.known), recipe=recipe, centre=drawn_to, tell=tell)
            unknown = examples.take(np.flatnonzero(fold))
            held.parts.append((unknown, score_tokens(unknown, weights), weights))
            course.f1 = held.f1()
        return held

    if not has_base:
        held = held_out(chains.examples, None, folds, "held-out labels")
        return report(False, held.best_temperature(), held, None)
    # The network is used unless the first fold speaks clearly against it; all folds then look at what is used.
    plain = without_dense(chains.examples)
    with_base = held_out(chains.examples, centre, folds[:1], "with the network")
    without = held_out(plain, None, folds[:1], "without the network")
    worse = with_base.losses(with_base.best_temperature()) - without.losses(without.best_temperature())
    uses_base = bool(worse.mean() <= _CLEARLY * worse.std() / np.sqrt(len(worse))) or len(worse) < _LEAST_TO_JUDGE
    loss_without = without.loss(without.best_temperature())
    first = with_base if uses_base else without
    rest = held_out(*((chains.examples, centre) if uses_base else (plain, None)), folds[1:], "held-out labels")
    held = _Held([*first.parts, *rest.parts], space)
    return report(uses_base, held.best_temperature(), held, loss_without)
