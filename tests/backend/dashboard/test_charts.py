"""Charts: what is drawn where, one day, gaps, and nothing of a name that could be markup."""

from __future__ import annotations

import math
import re
from datetime import date, timedelta
from xml.etree import ElementTree as ET

import pytest

from backend.dashboard.charts import (
    Chart,
    Estimate,
    count_chart,
    interval_chart,
    line_chart,
    stacked_chart,
    step_chart,
)

DAY = date(2026, 3, 31)
ROLES = {"blind": "first", "assisted": "second"}


def parsed(chart: Chart | None) -> ET.Element:
    assert chart is not None
    return ET.fromstring(f"<svg>{chart.content}</svg>")  # noqa: S314 - our own


def labels(chart: Chart | None) -> list[str]:
    return [text.text or "" for text in parsed(chart).iter("text")]


def titles(chart: Chart | None) -> list[str]:
    return [title.text or "" for title in parsed(chart).iter("title")]


def test_one_day_is_named_once_as_a_day() -> None:
    chart = line_chart({"blind": [Estimate(DAY, 0.9, 0.8, 0.95)]}, target=0.9, roles=ROLES)
    assert [text for text in labels(chart) if "%" not in text] == ["31 Mar"]
    (dot,) = parsed(chart).iter("circle")
    assert dot.get("cx") == "50.00%"
    assert titles(chart) == ["blind, 2026-03-31: 90.0 % (80.0 % to 95.0 %)"]
    assert [line.get("class") for line in parsed(chart).iter("line")].count("whisker first") == 1


@pytest.mark.parametrize("length", [2, 3, 10, 30, 90, 365])
def test_days_are_whole_and_few_and_the_last_is_named(length: int) -> None:
    points = [Estimate(DAY - timedelta(days=n), 0.9, 0.85, 0.95) for n in reversed(range(length))]
    named = [text for text in labels(line_chart({"blind": points}, target=None, roles=ROLES)) if "%" not in text]
    assert 2 <= len(named) <= 4
    assert named[-1] == "31 Mar"
    assert all(re.fullmatch(r"\d{1,2} [A-Z][a-z]{2}", text) for text in named)


def test_the_later_half_of_a_line_lies_inside() -> None:
    points = [Estimate(DAY + timedelta(days=n), 0.9, 0.1 if n < 5 else 0.82, 0.95) for n in range(10)]
    chart = line_chart({"blind": points}, target=0.95, roles=ROLES)
    assert [text for text in labels(chart) if "%" in text] == ["75 %", "80 %", "85 %", "90 %", "95 %", "100 %"]
    assert chart is not None
    assert chart.note == "Dashed line: target 95 %."
    assert chart.legend == ()  # one line needs none


def test_groups_stand_below_each_other_in_the_order_of_the_table() -> None:
    groups = {
        "assisted": [Estimate("de", 0.9, 0.8, 0.95), Estimate("<b>", 0.7, 0.6, 0.8)],
        "blind": [Estimate("<b>", 0.9, 0.8, 1.0)],
    }
    chart = interval_chart(groups, target=0.9, roles=ROLES)
    assert [text for text in labels(chart) if "%" not in text] == ["de", "<b>"]
    assert chart is not None
    assert "<b>" not in chart.content
    assert chart.legend == (("blind", "first"), ("assisted", "second"))
    tops = [float((dot.get("cy") or "").rstrip("%")) for dot in parsed(chart).iter("circle")]
    assert len(tops) == 3
    assert all(0 < top < 100 for top in tops)


def test_parts_fill_the_whole() -> None:
    chart = stacked_chart({"one": [0.5, 1.0], "several": [0.25, 0.0], "open": [0.25, 0.0]}, ["all", "de"])
    widths = [float((bar.get("width") or "").rstrip("%")) for bar in parsed(chart).iter("rect")]
    assert widths == [50.0, 25.0, 25.0, 100.0]
    assert titles(chart)[-1] == "de, one: 100.0 %"


def test_counts_have_whole_numbers_on_their_axis() -> None:
    chart = count_chart({"kept": 3, "removed": 0})
    assert [text for text in labels(chart) if text.isdigit()] == ["0", "1", "2", "3"]
    assert parsed(count_chart({"kept": 0})) is not None


def test_an_infinite_threshold_leaves_a_gap() -> None:
    chart = step_chart({"en/*": {1: 2.0, 2: math.inf, 3: 2.5, 4: 2.4}, "de/*": {1: math.inf, 2: math.inf}})
    assert chart is not None
    assert chart.legend == ()  # de/* has no limit anywhere, so there is one line
    assert len(titles(chart)) == 3
    (path,) = parsed(chart).iter("path")
    assert (path.get("d") or "").startswith("M66.67 ")


@pytest.mark.parametrize(
    "chart",
    [
        line_chart({}, target=0.9, roles=ROLES),
        line_chart({"blind": []}, target=0.9, roles=ROLES),
        interval_chart({"blind": []}, target=None, roles=ROLES),
        stacked_chart({"one": []}, []),
        count_chart({}),
        step_chart({"en/*": {1: math.inf}}),
    ],
)
def test_nothing_is_drawn_of_nothing(chart: Chart | None) -> None:
    assert chart is None
