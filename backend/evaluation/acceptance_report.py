"""The figures of acceptance on labelled files as a Markdown page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ABOUT = (
    "*May be accepted*: share of all tasks whose doubt is at most the level, mean over draws; *no flag*: of these, "
    "without a flag; *unopened*: what is accepted in truth when every decision is acted on at once, blind tasks and "
    "those that people had come to left out. *Wrong, of all* and *of accepted*: the true loss of what may be "
    "accepted. *Above*: share of draws in which eps was exceeded; at most 5 % are allowed. *Permitted*: the "
    "greatest level that keeps the bound with the same labels and the same share of the error, tested by itself, "
    "and *of permitted* what of it is accepted. *Curve*: what the bound would allow if the labels showed the true "
    "error curve; *oracle*: what keeps eps on that curve. *Stamped*: the same decisions on as many labels of any "
    "task in random order, those that people confirmed unread among them."
)
_COLUMNS = (
    *("of", "eps", "may be accepted", "no flag", "unopened", "wrong, of all", "of accepted", "above"),
    *("permitted", "of permitted", "curve", "of curve", "oracle", "stamped: may", "stamped: wrong", "stamped: above"),
)


def acceptance_report(results: Mapping[str, Mapping[str, Any]], *, model: str) -> str:
    """Return the figures of all files as a Markdown page."""
    lines = ["# Acceptance in review order", "", f"Model {model}. {_ABOUT}"]
    for name, found in results.items():
        kind = "shares, Hoeffding and Bentkus" if found["shares"] else "0 or 1, Clopper and Pearson"
        counts = (
            f"{found['tasks']:,} tasks, {found['blind']:.0%} drawn blind, {found['draws']} draws; {found['wrong']:.1%} "
            f"of the best labelings have an error, mean loss {found['loss']:.3f} ({kind})."
        )
        lines += ["", f"## {name}", "", counts, "", f"| {' | '.join(_COLUMNS)} |", "|" + "---|" * len(_COLUMNS)]
        lines += [f"| {' | '.join(_cells(row))} |" for row in found["wishes"]]
    return "\n".join(lines) + "\n"


def _cells(row: Mapping[str, Any]) -> list[str]:
    stamped = row["stamped"]
    wrong = "of all" if row["of"] == "all" else "of accepted"
    return [
        row["of"],
        f"{float(row['max_error']):g}",
        *(_percent(row[name]) for name in ("share", "unflagged", "unopened")),
        *(_percent(row[name], 2) for name in ("of all", "of accepted")),
        _percent(row["exceeded"]),
        *(_percent(row[name]) for name in ("permitted", "of permitted", "curve", "of curve", "oracle")),
        _percent(stamped["share"]),
        _percent(stamped[wrong], 2),
        _percent(stamped["exceeded"]),
    ]


def _percent(share: float | None, digits: int = 1) -> str:
    return "" if share is None else f"{100 * share:.{digits}f} %"
