"""Scores of labelings and of the labels of spans, one file each, behind `Method` and `EntityMethod` (METHODS 4, 6, 7).

`table` lists them; `score` says what a score is.
"""

from conformal.scores.boundary import Boundary, previous_scores
from conformal.scores.draws import boundary_u, hash_u
from conformal.scores.entity_method import EntityMethod
from conformal.scores.method import Method
from conformal.scores.ranks import DEFAULT_LIMIT, Ranks, cumulate
from conformal.scores.score import PlainScore, Score, Sets, SpanScore, TuningPart
from conformal.scores.table import METHODS, PLAIN_SCORES, SCORES, SPAN_METHODS, SPAN_SCORES, split_name
from conformal.scores.tuned import PART, Choice, Grid, Reference, Tuned

__all__ = [
    "DEFAULT_LIMIT",
    "METHODS",
    "PART",
    "PLAIN_SCORES",
    "SCORES",
    "SPAN_METHODS",
    "SPAN_SCORES",
    "Boundary",
    "Choice",
    "EntityMethod",
    "Grid",
    "Method",
    "PlainScore",
    "Ranks",
    "Reference",
    "Score",
    "Sets",
    "SpanScore",
    "Tuned",
    "TuningPart",
    "boundary_u",
    "cumulate",
    "hash_u",
    "previous_scores",
    "split_name",
]
