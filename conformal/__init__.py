"""Conformal prediction for linear-chain taggers: exact inference, thresholds and prediction sets.

Needs numpy and numba only: no torch, no server, no database. Two steps: `calibrate` freezes thresholds from
calibration rows (`score_unit` makes them), `predict_set` uses them on a text's potentials.
"""

from conformal.errors import (
    ConformalError,
    EmptyCalibration,
    InvalidArgument,
    InvalidLabels,
    InvalidPotentials,
    InvalidScores,
    InvalidThresholds,
    NoLegalLabeling,
    RankedListTooShort,
    UnknownStratum,
)
from conformal.labels import LabelMap, LabelSpace, Scheme, Span, detect_scheme, map_model_labels, to_iob2
from conformal.prediction import PredictionSet, RankedLabeling, predict_set
from conformal.rows import EntityRows, TaskRows, UnitScores, score_unit, task_rows
from conformal.scores import Boundary, Method
from conformal.span_sets import SpanLabel, SpanSet
from conformal.strata import Strata
from conformal.subsequence import EntityMethod
from conformal.thresholds import Thresholds, calibrate
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
    "Boundary",
    "Chain",
    "ConformalError",
    "EmptyCalibration",
    "EntityMarginals",
    "EntityMethod",
    "EntityRows",
    "InvalidArgument",
    "InvalidLabels",
    "InvalidPotentials",
    "InvalidScores",
    "InvalidThresholds",
    "KBest",
    "LabelMap",
    "LabelSpace",
    "Method",
    "NoLegalLabeling",
    "Potentials",
    "PredictionSet",
    "RankedLabeling",
    "RankedListTooShort",
    "Scheme",
    "Span",
    "SpanLabel",
    "SpanSet",
    "SpanTable",
    "Strata",
    "TaskRows",
    "Thresholds",
    "UnitScores",
    "UnknownStratum",
    "calibrate",
    "detect_scheme",
    "entity_marginals",
    "enumerate_above",
    "kbest",
    "log_partition",
    "log_probability",
    "map_model_labels",
    "predict_set",
    "rank_of",
    "score_unit",
    "task_rows",
    "to_iob2",
    "token_marginals",
    "warm_up",
]
