"""What campaigns came to: a table, two drawings, and the same for programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from backend.drawing.area import Area
from backend.drawing.scales import Scale, ticks
from backend.drawing.standalone import role_of, svg_file
from backend.simulation.campaign import Played, Point
from backend.simulation.policies import POLICIES
from conformal.risk.acceptance import DELTA, binomial_cdf

_PLACES = 101  # of a drawn line
_COLUMNS = (
    *(
        "policy",
        "campaigns",
        "work",
        "lowest-highest",
        "in hindsight",
        "errors of a task",
        "highest",
        "of all entities",
    ),
    *("opened", "accepted", "accepted and wrong", "above", "p", "trainings"),
)
_ABOUT = (
    "*Work*: seconds until every task is labelled or accepted, as a share of the work by hand. *In hindsight*: the "
    "share after which no more than the aim was wrong again, were every other task left as the model has it; nobody "
    "without the true labels could have stopped there. *Errors of a task*: share of its final entities that are wrong "
    "or missing at the end, on average over tasks with an entity, true or predicted (METHODS 11.1); *of all entities*: "
    "all errors over all entities. *Accepted and wrong*: of all tasks; the promise is at most the aim in 95 % of "
    "campaigns (METHODS 12.2). *Above*: campaigns in which it was more, and *p*: the chance of so many or more if the "
    "promise holds."
)


def summarise(played: Sequence[Played]) -> list[dict[str, Any]]:
    """Return a row for each aim and policy: means over campaigns, and how often a promise was exceeded."""
    rows = []
    for max_error, name in _groups(played):
        mine = [each for each in played if (each.max_error, each.policy) == (max_error, name)]
        eps = float(max_error)
        shares = [each.share for each in mine]
        losses = [each.end.loss for each in mine]
        above = sum(each.accepted_wrong > eps for each in mine)
        rows.append(
            {
                "max_error": max_error,
                "policy": name,
                "campaigns": len(mine),
                "work": _mean(shares),
                "lowest": min(shares),
                "highest": max(shares),
                "hindsight": _mean([each.share_in_hindsight(eps) for each in mine]),
                "loss": _mean(losses),
                "highest_loss": max(losses),
                "whole": _mean([each.end.whole for each in mine]),
                "opened": _mean([each.end.opened / each.tasks for each in mine]),
                "accepted": _mean([each.end.accepted / each.tasks for each in mine]),
                "accepted_wrong": _mean([each.accepted_wrong for each in mine]),
                "above": above,
                "p": chance_of(above, len(mine)),
                "trained": _mean([each.trained for each in mine]),
                "tasks": _mean([each.tasks for each in mine]),
                "remarks": sorted({remark for each in mine for remark in each.remarks}),
            }
        )
    return rows


def chance_of(above: int, campaigns: int) -> float:
    """Return the chance that so many campaigns or more are above, if each is with the chance that is allowed.

    >>> chance_of(0, 10), round(chance_of(2, 10), 3)
    (1.0, 0.086)
    """
    return 1.0 if above == 0 else 1.0 - float(binomial_cdf(campaigns, DELTA)[above - 1])


def report(played: Sequence[Played], *, about: str, drawings: Sequence[str] = ()) -> str:
    """Return the page."""
    lines = ["# Simulated campaigns", "", about, "", _ABOUT]
    rows = summarise(played)
    for max_error in dict.fromkeys(row["max_error"] for row in rows):
        mine = [row for row in rows if row["max_error"] == max_error]
        lines += ["", f"## At most {float(max_error):.0%} of a task's entities wrong", ""]
        lines += [f"| {' | '.join(_COLUMNS)} |", "|" + "---|" * len(_COLUMNS)]
        lines += [f"| {' | '.join(_cells(row))} |" for row in mine]
        for remark in dict.fromkeys(remark for row in mine for remark in row["remarks"]):
            lines += ["", f"Acceptance was refused in some of them: {remark}"]
    lines += ["", *(f"![{Path(name).stem}]({name})" for name in drawings)]
    return "\n".join(lines) + "\n"


def drawings(played: Sequence[Played]) -> dict[str, str]:
    """Return drawings by the name of their file: errors left, and tasks done, over the work."""
    drawn = {}
    for max_error in dict.fromkeys(each.max_error for each in played):
        mine = [each for each in played if each.max_error == max_error]
        drawn[f"errors-{max_error}.svg"] = _draw(
            mine,
            lambda each, point: point.loss,  # noqa: ARG005
            title=f"Errors left if it ended here (aim {float(max_error):.0%})",
            up="share of a task's entities",
            target=float(max_error),
            high=0.4,
        )
        drawn[f"done-{max_error}.svg"] = _draw(
            mine,
            lambda each, point: (point.opened + point.accepted) / each.tasks,
            title=f"Tasks labelled or accepted (aim {float(max_error):.0%})",
            up="share of tasks",
            target=None,
            high=1.0,
        )
    return drawn


def _draw(
    played: Sequence[Played],
    value: Callable[[Played, Point], float],
    *,
    title: str,
    up: str,
    target: float | None,
    high: float,
) -> str:
    across, upwards = Scale(0.0, max(1.0, *(each.share for each in played))), Scale(0.0, high, upwards=True)
    area = Area()
    area.grid(across=[upwards.at(tick) for tick in ticks(0.0, high)])
    for tick in ticks(0.0, high):
        area.left_label(upwards.at(tick), f"{tick:.0%}")
    for tick in ticks(across.low, across.high):
        area.bottom_label(across.at(tick), f"{tick:.0%}")
    if target is not None:
        area.target(top=upwards.at(target))
    legend = []
    for number, name in enumerate(dict.fromkeys(each.policy for each in played)):
        line = _mean_line([each for each in played if each.policy == name], value)
        area.line([(across.at(x), upwards.at(min(high, y))) for x, y in line], role_of(number))
        legend.append((name, role_of(number)))
    return svg_file(area, title=title, across="work, as a share of the work by hand", up=up, legend=legend)


def _mean_line(played: Sequence[Played], value: Callable[[Played, Point], float]) -> list[tuple[float, float]]:
    """Return the mean over campaigns at equal shares of the work, up to where the last one ended."""
    end = max(each.share for each in played)
    shares = np.linspace(0.0, end, _PLACES)
    lines = []
    for each in played:
        at = np.array([point.seconds for point in each.points]) / each.by_hand
        values = np.array([value(each, point) for point in each.points])
        lines.append(values[np.searchsorted(at, shares, side="right") - 1])
    return list(zip(shares.tolist(), np.mean(lines, axis=0).tolist(), strict=True))


def _groups(played: Sequence[Played]) -> list[tuple[str, str]]:
    order = list(POLICIES)
    return sorted(
        {(each.max_error, each.policy) for each in played}, key=lambda group: (group[0], order.index(group[1]))
    )


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        f"{row['policy']}: {POLICIES[row['policy']].summary}",
        f"{row['campaigns']}",
        f"{row['work']:.1%}",
        f"{row['lowest']:.1%}-{row['highest']:.1%}",
        f"{row['hindsight']:.1%}",
        f"{row['loss']:.2%}",
        f"{row['highest_loss']:.2%}",
        f"{row['whole']:.2%}",
        f"{row['opened']:.1%}",
        f"{row['accepted']:.1%}",
        f"{row['accepted_wrong']:.2%}",
        f"{row['above']}",
        f"{row['p']:.2f}",
        f"{row['trained']:.1f}",
    ]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
