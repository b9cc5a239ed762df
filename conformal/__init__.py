"""Conformal prediction for linear-chain taggers: exact inference, thresholds and prediction sets.

Needs numpy and numba only: no torch, no server, no database.
"""

from conformal.errors import (
    ConformalError,
    InvalidArgument,
    InvalidLabels,
    InvalidPotentials,
    NoLegalLabeling,
)
from conformal.labels import LabelMap, LabelSpace, Scheme, Span, detect_scheme, map_model_labels, to_iob2
from conformal.trellis import (
    Chain,
    EntityMarginals,
    KBest,
    Potentials,
    SpanTable,
    entity_marginals,
    enumerate_above,
    kbest,
    log_partition,
    log_probability,
    rank_of,
    token_marginals,
    warm_up,
)

__all__ = [
    "Chain",
    "ConformalError",
    "EntityMarginals",
    "InvalidArgument",
    "InvalidLabels",
    "InvalidPotentials",
    "KBest",
    "LabelMap",
    "LabelSpace",
    "NoLegalLabeling",
    "Potentials",
    "Scheme",
    "Span",
    "SpanTable",
    "detect_scheme",
    "entity_marginals",
    "enumerate_above",
    "kbest",
    "log_partition",
    "log_probability",
    "map_model_labels",
    "rank_of",
    "to_iob2",
    "token_marginals",
    "warm_up",
]
