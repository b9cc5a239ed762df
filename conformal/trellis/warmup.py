"""Compile (or load from the cache) every kernel before the first real text needs one."""

from __future__ import annotations

import numpy as np

from conformal.labels import LabelSpace
from conformal.trellis.forward import log_probability
from conformal.trellis.kbest import kbest
from conformal.trellis.marginals import entity_marginals, token_marginals
from conformal.trellis.potentials import Chain


def warm_up() -> None:
    """Run every kernel once on a tiny text; call it at start-up, in a thread if the start must not wait."""
    space = LabelSpace(["A"])
    L = len(space)
    chain = Chain(
        transitions=np.where(space.allowed, 0.0, -np.inf),
        start=np.where(space.allowed_start, 0.0, -np.inf),
        end=np.zeros(L),
    )
    gentle = np.zeros((2, L))
    extreme = np.array([[0.0, -900.0, 0.0], [0.0, -900.0, 0.0]])  # too wide for the scaled pass
    for emissions in (gentle, extreme):
        potentials = chain.potentials(emissions)
        kbest(potentials, 2, space=space)
        log_probability(potentials, [0, 1])
        token_marginals(potentials)
        entity_marginals(potentials, space).probability(0, 1, "A")
