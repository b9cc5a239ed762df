"""The charts of a page, as SVG that takes the width of its place; a pointer over a mark reads its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from backend.drawing.area import ROLES, Area
from backend.drawing.scales import Scale, day_ticks, ticks

_HEIGHT, _ROW, _BAR, _LINE, _GAP = 260, 46, 16, 18, 10  # pixels: chart, row with its name, bar, name, between two dots
_ROOM = 32  # pixels above and below rows, as the style sheet has it
_MARKED = 40  # points up to which each has a dot


@dataclass(frozen=True)
class Chart:
    """A drawing, its height in pixels, its kind in the style sheet, and the names of its colours."""

    content: str
    height: int
    kind: str  # plot: with a vertical axis; rows: one below the other
    legend: tuple[tuple[str, str], ...] = ()  # name, role
    note: str = ""


@dataclass(frozen=True)
class Estimate:
    """A share with its interval, of a day or of a group."""

    of: date | str
    share: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.of}: {_percent(self.share)} ({_percent(self.low)} to {_percent(self.high)})"


def line_chart(
    lines: Mapping[str, Sequence[Estimate]], *, target: float | None, roles: Mapping[str, str]
) -> Chart | None:
    """Draw shares over days, each line with its interval as a band, and the target."""
    lines = {name: points for name, points in lines.items() if points}
    days = [point.of for points in lines.values() for point in points if isinstance(point.of, date)]
    if not days:
        return None
    across = Scale(min(days).toordinal(), max(days).toordinal())
    # The first days hold few labels and have long intervals: the later half of each line must be seen whole.
    lows = [point.low for points in lines.values() for point in points[len(points) // 2 :]]
    up = _shares(lows, target, upwards=True)
    area = Area()
    _vertical(area, up, [(tick, _percent(tick, digits=0)) for tick in ticks(up.low, 1.0, most=6)])
    for day in day_ticks(days, most=4):
        area.bottom_label(across.at(day.toordinal()), f"{day.day} {day:%b}")
    if target is not None:
        area.target(top=up.at(target))
    for name, points in lines.items():
        role = roles[name]
        places = [(across.at(_number(point)), point) for point in points]
        area.band(
            [(left, up.at(point.high)) for left, point in places],
            [(left, up.at(point.low)) for left, point in places],
            role,
        )
        area.line([(left, up.at(point.share)) for left, point in places], role)
        if len(points) == 1:
            left, point = places[0]
            area.whisker((left, up.at(point.high)), (left, min(100.0, up.at(point.low))), role)
        if len(points) < _MARKED:
            for left, point in places:
                area.dot(left, up.at(point.share), role, title=f"{name}, {point}")
    return Chart(area.content(), _HEIGHT, "plot", _legend({name: roles[name] for name in lines}), _said(target))


def interval_chart(
    groups: Mapping[str, Sequence[Estimate]], *, target: float | None, roles: Mapping[str, str]
) -> Chart | None:
    """Draw shares of groups below each other, each with its interval."""
    names = list(dict.fromkeys(str(point.of) for points in groups.values() for point in points))
    if not names:
        return None
    shown = sorted((name for name, points in groups.items() if points), key=lambda name: ROLES.index(roles[name]))
    right = _shares([point.low for points in groups.values() for point in points], target, upwards=False)
    row = _LINE + _GAP * (len(shown) + 1)
    height = row * len(names)
    area = Area()
    _horizontal(area, right, [(tick, _percent(tick, digits=0)) for tick in ticks(right.low, 1.0, most=5)])
    for place, name in enumerate(names):
        area.row_label(place * row + _LINE - 4, name)
    if target is not None:
        area.target(left=right.at(target))
    for order, name in enumerate(shown):
        for point in groups[name]:
            top = 100.0 * (names.index(str(point.of)) * row + _LINE + _GAP * (order + 0.6)) / height
            area.whisker((right.at(point.low), top), (right.at(point.high), top), roles[name])
            area.dot(right.at(point.share), top, roles[name], title=f"{name}, {point}")
    legend = _legend({name: roles[name] for name in shown})
    return Chart(area.content(), height + _ROOM, "rows", legend, _said(target))


def stacked_chart(parts: Mapping[str, Sequence[float]], places: Sequence[str]) -> Chart | None:
    """Draw how a whole divides into parts, for each place."""
    if not places:
        return None
    area, right = Area(), Scale(0.0, 1.0)
    _horizontal(area, right, [(tick, _percent(tick, digits=0)) for tick in (0.0, 0.25, 0.5, 0.75, 1.0)])
    roles = dict(zip(parts, ROLES, strict=False))
    for number, place in enumerate(places):
        area.row_label(number * _ROW + _LINE - 4, place)
        left = 0.0
        for name, shares in parts.items():
            width = 100.0 * shares[number]
            if width > 0:
                title = f"{place}, {name}: {_percent(shares[number])}"
                top = number * _ROW + _LINE
                area.bar(left, top, width=width, height=_BAR, role=roles[name], title=title)
            left += width
    return Chart(area.content(), _ROW * len(places) + _ROOM, "rows", _legend(roles))


def count_chart(counts: Mapping[str, int]) -> Chart | None:
    """Draw counts by name."""
    if not counts:
        return None
    most = max(1, *counts.values())
    area, right = Area(), Scale(0.0, float(most))
    marks = [tick for tick in ticks(0.0, float(most), most=5) if tick.is_integer()]
    _horizontal(area, right, [(tick, f"{tick:,.0f}") for tick in marks])
    for number, (name, count) in enumerate(counts.items()):
        area.row_label(number * _ROW + _LINE - 4, name)
        top = number * _ROW + _LINE
        area.bar(0.0, top, width=right.at(count), height=_BAR, role=ROLES[0], title=f"{name}: {count:,}")
    return Chart(area.content(), _ROW * len(counts) + _ROOM, "rows")


def step_chart(lines: Mapping[str, Mapping[int, float]]) -> Chart | None:
    """Draw thresholds by version, a line a pool; infinite ones leave a gap."""
    finite = {
        name: values for name, values in list(lines.items())[: len(ROLES)] if any(map(math.isfinite, values.values()))
    }
    if not finite:
        return None
    versions = sorted({version for values in finite.values() for version in values})
    across = Scale(0.0, float(len(versions) - 1))
    known = [value for values in finite.values() for value in values.values() if math.isfinite(value)]
    room = 0.05 * (max(known) - min(known)) or 0.5
    up = Scale(min(known) - room, max(known) + room, upwards=True)
    area = Area()
    _vertical(area, up, [(tick, f"{tick:g}") for tick in ticks(up.low, up.high, most=6)])
    every = math.ceil(len(versions) / 8)
    for place, version in enumerate(versions):
        if place % every == 0:
            area.bottom_label(across.at(place), f"v{version}")
    roles = dict(zip(finite, ROLES, strict=False))
    for name, values in finite.items():
        for run in _runs(versions, values):
            area.line([(across.at(versions.index(v)), up.at(values[v])) for v in run], roles[name], steps=True)
        for version, value in values.items():
            if math.isfinite(value):
                title = f"{name}, version {version}: {value:.3g}"
                area.dot(across.at(versions.index(version)), up.at(value), roles[name], title=title)
    return Chart(area.content(), _HEIGHT, "plot", _legend(roles), "By threshold version.")


def _runs(versions: Sequence[int], values: Mapping[int, float]) -> list[list[int]]:
    """Return the versions that a line joins: neighbours of this pool's, all with a limit."""
    runs: list[list[int]] = [[]]
    for version in versions:
        if version not in values:
            continue
        if math.isfinite(values[version]):
            runs[-1].append(version)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _vertical(area: Area, up: Scale, marks: Sequence[tuple[float, str]]) -> None:
    area.grid(across=[up.at(value) for value, _ in marks])
    for value, text in marks:
        area.left_label(up.at(value), text)


def _horizontal(area: Area, right: Scale, marks: Sequence[tuple[float, str]]) -> None:
    area.grid(down=[right.at(value) for value, _ in marks])
    for value, text in marks:
        area.bottom_label(right.at(value), text)


def _shares(lows: Sequence[float], target: float | None, *, upwards: bool) -> Scale:
    lowest = min([*lows, 1.0 if target is None else target])
    return Scale(max(0.0, math.floor(lowest * 20 - 0.5) / 20), 1.0, upwards=upwards)


def _number(point: Estimate) -> int:
    return point.of.toordinal() if isinstance(point.of, date) else 0


def _legend(roles: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(roles.items()) if len(roles) > 1 else ()


def _said(target: float | None) -> str:
    return "" if target is None else f"Dashed line: target {100 * target:.4g} %."


def _percent(share: float, *, digits: int = 1) -> str:
    """Write a share; without decimals where it has none.

    >>> _percent(0.953), _percent(0.95, digits=0), _percent(0.975, digits=0)
    ('95.3 %', '95 %', '97.5 %')
    """
    return f"{100 * share:.{digits}f} %" if digits else f"{100 * share:.4g} %"
