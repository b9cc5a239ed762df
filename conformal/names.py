"""The names of all methods, with what their sets are worth; plain data, so that settings can be checked early."""

from __future__ import annotations

from conformal.errors import InvalidArgument

# Full-sequence methods. The part after "+" is the probability score a method builds on; joint ones pair it with the
# rank. "integrated" are the calibrated sets of METHODS 7.3, "+nc1" joined with nc1. The others that begin with
# "integrated_" are the paper's (METHODS 7.1): kept for comparison, no finite-sample guarantee.
METHODS: dict[str, str] = {
    "nc1": "exact",
    "nc2": "exact",
    "nc3": "exact",
    "logrank+nc1": "exact",
    "raps+nc1": "exact",
    "raps+nc2": "exact",
    "naive+nc1": "exact",
    "naive+nc2": "exact",
    "conditional+nc1": "exact",
    "conditional+nc2": "exact",
    "conditional_paper+nc1": "approximate",
    "conditional_paper+nc2": "approximate",
    "joint+nc1": "exact",
    "joint+nc2": "exact",
    "integrated": "exact",
    "integrated+nc1": "exact",
    "integrated_plain+nc1": "heuristic",
    "integrated_sidak+nc1": "heuristic",
    "integrated_sidak+nc2": "heuristic",
    "integrated_sidak+nc3": "heuristic",
    "integrated_sidak+raps": "heuristic",
    "integrated_index": "heuristic",
    "integrated_index+nc1": "heuristic",
}

# Methods for the sets of single spans (METHODS 6.1, 6.5).
SPAN_METHODS = (
    "nc1",
    "nc2",
    "nc3",
    "raps+nc1",
    "raps+nc2",
    "naive+nc1",
    "naive+nc2",
    "conditional+nc1",
    "conditional+nc2",
)

# The span score that each of the paper's integrated sets is made of; those with the index need the rank beside it.
PAPER_SPANS: dict[str, str] = {
    "integrated_plain+nc1": "nc1",
    "integrated_sidak+nc1": "nc1",
    "integrated_sidak+nc2": "nc2",
    "integrated_sidak+nc3": "nc3",
    "integrated_sidak+raps": "raps+nc1",
    "integrated_index": "naive+nc1",
    "integrated_index+nc1": "naive+nc1",
}


def split_name(text: str) -> tuple[str, str]:
    """Return the full-sequence method and the span method that a name such as "nc1/raps+nc1" stands for.

    Without a slash spans are scored by nc1, or by what one of the paper's integrated sets is made of. Raises
    `InvalidArgument` with the known names.

    >>> split_name("nc1"), split_name("raps+nc2/raps+nc1"), split_name("integrated_sidak+raps")
    (('nc1', 'nc1'), ('raps+nc2', 'raps+nc1'), ('integrated_sidak+raps', 'raps+nc1'))
    """
    full, slash, spans = text.partition("/")
    if full not in METHODS:
        raise InvalidArgument(f"expected a method among {', '.join(METHODS)}, got {full!r}")
    own = PAPER_SPANS.get(full, "nc1")
    if not slash:
        return full, own
    if spans not in SPAN_METHODS:
        raise InvalidArgument(f"expected a span method after '/' among {', '.join(SPAN_METHODS)}, got {spans!r}")
    if full in PAPER_SPANS and spans != own:
        raise InvalidArgument(f"expected {full} with the spans it is made of, {own}, got {spans!r}")
    return full, spans
