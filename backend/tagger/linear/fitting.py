"""Weights of a linear chain from labelled chains: penalised maximum likelihood."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from backend.tagger.errors import InvalidTraining
from backend.tagger.linear.kernels import Floats
from backend.tagger.linear.lbfgs import minimise
from backend.tagger.linear.objective import Examples, Objective, Penalty, Weights
from conformal.labels import LabelSpace


@dataclass(frozen=True)
class Recipe:
    """Strengths of the penalties and when to stop; part of a saved model.

    `base` is of a network's emissions, `base_known` the same where the network has every class under the same name:
    then few labels should not move far from what it says.
    """

    sparse: float = 0.1
    base: float = 0.05
    base_known: float = 1.0
    chain: float = 0.1
    steps: int = 120
    tolerance: float = 1e-3
    seed: int = 1

    def __post_init__(self) -> None:
        if min(self.sparse, self.base, self.base_known, self.chain, self.tolerance) <= 0.0:
            raise InvalidTraining("expected penalties and a tolerance above 0, got one that is not; raise it")
        if self.steps < 1:
            raise InvalidTraining(f"expected at least 1 step, got {self.steps}")


def fit(
    examples: Examples,
    space: LabelSpace,
    *,
    features: int,
    recipe: Recipe,
    centre: Floats | None,
    tell: Callable[[int], None],
) -> Weights:
    """Return the weights of the least penalised loss; penalties draw to `centre`, or to 0. Each step is told."""
    penalty = Penalty(recipe.sparse, recipe.base, recipe.chain)
    objective = Objective(examples, space, features=features, penalty=penalty, centre=centre)
    begin = np.zeros(objective.size) if centre is None else centre
    found = minimise(
        objective, begin, steps=recipe.steps, tolerance=recipe.tolerance, progress=lambda step, _: tell(step)
    )
    return objective.split(found.point)
