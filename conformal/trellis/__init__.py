"""Exact inference on linear chains: k-best labelings, probabilities and entity marginals (METHODS 1 and 2)."""

from conformal.trellis.forward import log_partition, log_probability
from conformal.trellis.kbest import KBest, SpanTable, enumerate_above, kbest, rank_of
from conformal.trellis.marginals import EntityMarginals, entity_marginals, token_marginals
from conformal.trellis.potentials import Chain, Potentials
from conformal.trellis.warmup import warm_up

__all__ = [
    "Chain",
    "EntityMarginals",
    "KBest",
    "Potentials",
    "SpanTable",
    "entity_marginals",
    "enumerate_above",
    "kbest",
    "log_partition",
    "log_probability",
    "rank_of",
    "token_marginals",
    "warm_up",
]
