"""Learn a linear CRF from labelled texts: held-out folds say how far to trust it, then all labels train it.

What is held out chooses whether a network's knowledge helps and sets the temperature, one number that all scores are
multiplied by: the chain stays exact, and its probabilities become worth their name (METHODS 13.6, 13.7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from backend.tagger.errors import InvalidTraining
from backend.tagger.linear.chains import Chains, build_chains
from backend.tagger.linear.course import Course, Progress
from backend.tagger.linear.fitting import Recipe, fit
from backend.tagger.linear.judging import Report, judge, without_dense
from backend.tagger.linear.kernels import Floats
from backend.tagger.linear.objective import Objective, Penalty, Weights
from backend.tagger.linear.token_features import bias_row
from backend.tagger.linear.word_features import Hashes
from backend.tagger.network_tagger import NetworkTagger
from backend.tagger.readers.types import LabelledText
from conformal.labels import LabelSpace


@dataclass(frozen=True)
class Learnt:
    """A learnt chain: hashes of its features, and weights already rounded as they are stored."""

    space: LabelSpace
    known: Hashes  # (F,)
    weights: Weights
    report: Report


def learn(
    texts: Sequence[LabelledText],
    *,
    space: LabelSpace | None = None,
    base: NetworkTagger | None = None,
    languages: Sequence[str] = (),
    recipe: Recipe | None = None,
    progress: Progress | None = None,
) -> Learnt:
    """Learn from labelled texts; the same texts in the same order give the same weights.

    `space` may have classes without an example: they are then never likely. Without it, the classes of the texts.
    `base` is a network whose emissions become features; for classes of the same name learning begins with its
    opinion. Raises InvalidTraining when there is nothing to learn from.
    """
    chosen = recipe or Recipe()
    say = progress or (lambda _stage, _share: None)
    if space is None:
        classes = sorted({span.label for text in texts for span in text.spans})
        if not classes:
            raise InvalidTraining("expected at least one labelled entity, got none; label some tasks first")
        space = LabelSpace(classes)
    say("reading", 0.0)
    chains = build_chains(texts, space, base=base, languages=languages)
    mean, spread = _scale(chains.examples.dense)
    even = ((chains.examples.dense - mean) / spread).astype(np.float32)
    chains = replace(chains, examples=replace(chains.examples, dense=even))
    if base is not None and {name.casefold() for name in space.classes} <= _folded(base):
        chosen = replace(chosen, base=chosen.base_known)
    centre = _centre(chains, space, base, mean=mean, spread=spread)
    course = Course(say)
    judged = judge(chains, space, recipe=chosen, centre=centre, course=course, begin=0.1, end=0.8)
    if not judged.uses_base:
        chains, centre = replace(chains, examples=without_dense(chains.examples)), None
    course.f1 = judged.held_f1
    tell = course.fit("learning from all labels", 0.8, 1.0, most=chosen.steps)
    weights = fit(chains.examples, space, features=len(chains.known), recipe=chosen, centre=centre, tell=tell)
    if judged.uses_base:
        weights = weights._replace(dense=weights.dense / spread[:, None])
        weights.sparse[bias_row(chains.known)] -= mean @ weights.dense
    scaled = Weights(*(_rounded(part * judged.temperature, part is weights.sparse) for part in weights))
    say("done", 1.0)
    return Learnt(space, chains.known, scaled, judged)


def _rounded(part: Floats, half: bool) -> Floats:
    """Return weights as the file has them, so that the model that is saved is the one that was judged."""
    stored = part.astype(np.float16 if half else np.float32)
    if not np.isfinite(stored).all():
        raise InvalidTraining("expected finite weights, got an overflow; raise the penalties")
    return stored.astype(np.float64)


def _folded(base: NetworkTagger) -> set[str]:
    return {name.casefold() for name in base.space.classes}


def _scale(dense: npt.NDArray[np.float32]) -> tuple[Floats, Floats]:
    """Return mean and spread of each dense feature: of equal size, they are learnt at equal speed."""
    if not dense.size:
        return np.zeros(dense.shape[1]), np.ones(dense.shape[1])
    return dense.mean(axis=0, dtype=np.float64), np.maximum(dense.std(axis=0, dtype=np.float64), 0.1)


def _centre(
    chains: Chains, space: LabelSpace, base: NetworkTagger | None, *, mean: Floats, spread: Floats
) -> Floats | None:
    """Return the weights that penalties draw to: the network's own chain where it knows a class by name, else 0."""
    if base is None:
        return None
    objective = Objective(chains.examples, space, features=len(chains.known), penalty=Penalty(1.0, 1.0, 1.0))
    flat = np.zeros(objective.size)
    centre = objective.split(flat)
    theirs = {name.casefold(): base.space.begin(name) for name in base.space.classes}
    pairs = [(0, 0)]
    for name in space.classes:
        if name.casefold() in theirs:
            own, other = space.begin(name), theirs[name.casefold()]
            pairs += [(own, other), (own + 1, other + 1)]
    if len(pairs) == 1:
        return None
    bias = bias_row(chains.known)
    for own, other in pairs:
        centre.dense[other, own] = spread[other]
        centre.sparse[bias, own] = mean[other]
        centre.end[own] = base.chain.end[other]
        if space.allowed_start[own]:
            centre.start[own] = base.chain.start[other]
        for to, their_to in pairs:
            if space.allowed[own, to]:
                centre.transitions[own, to] = base.chain.transitions[other, their_to]
    return flat
