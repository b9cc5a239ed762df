"""Tables of integrated sets: what is listed of each set is told apart from the whole of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backend.evaluation.paper_sets import VARIANTS
from backend.evaluation.tables import Table, at, mean, number, percent, spread

PAPERS_BEST = "int. RAPS+nc1, Šidák"  # of the paper's integrated sets, the one it recommends
OURS_INTEGRATED = "integrated+nc1|no strata"


def paper_table(results: dict[str, Any], alphas: Sequence[str]) -> Table:
    """Show the paper's integrated sets and the union bound, beside ours."""
    rows = []
    names = [
        *VARIANTS,
        "integrated|no strata",
        "integrated+nc1|no strata",
        "integrated|strata",
        "integrated+nc1|strata",
    ]
    for name in names:
        for alpha in alphas:
            own = at(results[name], alpha)
            worth = "heuristic" if name in VARIANTS else "exact"
            rows.append(
                (
                    name.replace("|", ", "),
                    worth,
                    percent(alpha),
                    f"{mean(own, 'coverage'):.4f} ± {spread(own, 'coverage'):.4f}",
                    f"{mean(own, 'listed_coverage'):.4f} ± {spread(own, 'listed_coverage'):.4f}",
                    *(number(mean(own, what), 2) for what in ("listed_size", "mean_100", "most_100")),
                    *(number(mean(own, what)) for what in ("empty", "open", "may_go_on")),
                )
            )
    return Table(
        "integrated",
        "Integrated sets: the paper's (heuristic), a union bound over span sets, and the calibrated ones",
        (
            "sets",
            "worth",
            "target",
            "coverage, whole set",
            "coverage, listed",
            "mean size, listed",
            "mean min(size,100), open as 100",
            "may go on as 100",
            "empty",
            "open",
            "may go on",
        ),
        tuple(rows),
        "Listed: members among the 100 best labelings of each sentence, the paper's K; the paper's sets are defined "
        "there, so that is all of them. The calibrated sets may reach beyond, and the guarantee is for the whole set. "
        "Open: known to reach beyond the list, because it holds a truth that ranks there, or its threshold infinite. "
        "May go on: what is stored does not rule out a member beyond the list; with these as 100 the mean is an upper "
        "bound, and the listed size is a lower bound.",
    )


def integrated_size_table(results: dict[str, Any], alphas: Sequence[str]) -> Table:
    """Compare the calibrated integrated sets joined with nc1 with the paper's best, at each level."""
    rows = []
    for alpha in alphas:
        theirs, ours = at(results[PAPERS_BEST], alpha), at(results[OURS_INTEGRATED], alpha)
        law = next((law for r in ours for law in r.get("laws", [])), None)
        size = mean(theirs, "listed_size")
        listed, most = mean(ours, "listed_size"), mean(ours, "most_100")
        rows.append(
            (
                percent(alpha),
                number(mean(theirs, "coverage"), 4),
                number(size, 2),
                number(mean(ours, "coverage"), 4),
                "–" if law is None else f"{law['below']:.2g}",
                number(mean(ours, "listed_coverage"), 4),
                number(listed, 2),
                number(most, 2),
                f"{listed / size:.3f}",
                f"{most / size:.3f}",
            )
        )
    return Table(
        "integrated-sizes",
        "Integrated sets: integrated+nc1 (exact) and the paper's RAPS+nc1 with Šidák",
        (
            "target",
            "paper's: coverage",
            "mean size",
            "ours: coverage, whole set",
            "p, below",
            "coverage, listed",
            "mean size, listed",
            "at most",
            "ratio, listed",
            "ratio, at most",
        ),
        tuple(rows),
        "One threshold for all, the same emissions and splits. Listed: among the 100 best labelings, as the paper's "
        "are. At most: every set that may reach beyond them counted as 100. A ratio below 1: ours is smaller. p: the "
        "chance of so few covered in the first split if coverage is at target.",
    )
