"""The table of all scores: a new one is a line here. What their names stand for is read here, and nowhere else."""

from __future__ import annotations

from conformal.errors import InvalidArgument
from conformal.scores.conditional import Conditional, ConditionalPaper
from conformal.scores.integrated import StrangestPart, StrangestPartAndNc1
from conformal.scores.integrated_paper import PaperSets
from conformal.scores.joint import Joint
from conformal.scores.logrank import LogRank
from conformal.scores.naive import Naive
from conformal.scores.nc1 import NC1
from conformal.scores.nc2 import NC2
from conformal.scores.nc3 import NC3
from conformal.scores.raps import Raps
from conformal.scores.score import PlainScore, Score, Sets, SpanScore

# The part of a name after "+" is the probability score that a method builds on.
SCORES: dict[str, Score] = {
    score.name: score
    for score in (
        NC1,
        NC2,
        NC3,
        LogRank(),
        Raps(NC1),
        Raps(NC2),
        Naive(NC1),
        Naive(NC2),
        Conditional(NC1),
        Conditional(NC2),
        ConditionalPaper(NC1),
        ConditionalPaper(NC2),
        Joint(NC1),
        Joint(NC2),
        StrangestPart(),
        StrangestPartAndNc1(),
        PaperSets("integrated_plain+nc1", spans="nc1", sidak=False),
        PaperSets("integrated_sidak+nc1", spans="nc1"),
        PaperSets("integrated_sidak+nc2", spans="nc2"),
        PaperSets("integrated_sidak+nc3", spans="nc3"),
        PaperSets("integrated_sidak+raps", spans="raps+nc1"),
        PaperSets("integrated_index", spans="naive+nc1", index=True, by_score=False),
        PaperSets("integrated_index+nc1", spans="naive+nc1", index=True),
    )
}

# What the sets of each full-sequence method are worth.
METHODS: dict[str, str] = {name: score.worth for name, score in SCORES.items()}

# Methods for the sets of single spans (METHODS 6.1, 6.5), and those that the others build on.
SPAN_SCORES: dict[str, SpanScore] = {name: score for name, score in SCORES.items() if isinstance(score, SpanScore)}
SPAN_METHODS = tuple(SPAN_SCORES)
PLAIN_SCORES: dict[str, PlainScore] = {name: score for name, score in SCORES.items() if isinstance(score, PlainScore)}


def split_name(text: str) -> tuple[str, str]:
    """Return the full-sequence method and the span method that a name such as "nc1/raps+nc1" stands for.

    Without a slash spans are scored by nc1, or by what one of the paper's integrated sets is made of. Raises
    `InvalidArgument` with the known names.

    >>> split_name("nc1"), split_name("raps+nc2/raps+nc1"), split_name("integrated_sidak+raps")
    (('nc1', 'nc1'), ('raps+nc2', 'raps+nc1'), ('integrated_sidak+raps', 'raps+nc1'))
    """
    full, slash, spans = text.partition("/")
    if full not in SCORES:
        raise InvalidArgument(f"expected a method among {', '.join(SCORES)}, got {full!r}")
    score = SCORES[full]
    if not slash:
        return full, score.spans
    if spans not in SPAN_METHODS:
        raise InvalidArgument(f"expected a span method after '/' among {', '.join(SPAN_METHODS)}, got {spans!r}")
    if score.sets is Sets.SPANS and spans != score.spans:
        raise InvalidArgument(f"expected {full} with the spans it is made of, {score.spans}, got {spans!r}")
    return full, spans
