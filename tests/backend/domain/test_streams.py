from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.records import Draw
from backend.domain.streams import (
    Order,
    OrderHistory,
    Sighting,
    draw_task,
    draw_unshown,
    exclusion_of,
    order_history,
    order_of,
    orders_at,
    review_began,
    uniforms,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


def history(*seen: tuple[float, Order], since: float | None = None, shuffled: bool = False) -> OrderHistory:
    sightings = [Sighting(at(minutes), order) for minutes, order in seen]
    return order_history(sightings, since=None if since is None else at(since), shuffled=shuffled)


BLIND = Draw("audit", 0.5, 0.1, blind=True)
QUEUED = Draw("queue", 0.5, 0.9, blind=False)
PLAIN = Draw("uniform", 0.5, 1.0, blind=False)


def test_the_three_numbers_are_uniform_and_independent() -> None:
    # Chi-squared over 10 x 10 cells of each pair, and over the pairs of neighbouring task ids: 99 degrees of freedom,
    # so 99 +- 14; 160 is beyond the 99.99th percentile. The salt is fixed, so this fails always or never.
    drawn = [uniforms("pepper", "1.1794788041", str(task)) for task in range(20_000)]
    pairs = {
        "position, u": [(each.position, each.u) for each in drawn],
        "u, v": [(each.u, each.v) for each in drawn],
        "position, v": [(each.position, each.v) for each in drawn],
        "u of neighbours": [(a.u, b.u) for a, b in pairwise(drawn)],
        "another salt": [(a.u, uniforms("salt", "1.1794788041", str(i)).u) for i, a in enumerate(drawn)],
        "another project": [(a.u, uniforms("pepper", "2.1794788041", str(i)).u) for i, a in enumerate(drawn)],
    }
    for name, values in pairs.items():
        cells = [0] * 100
        for a, b in values:
            assert 0.0 <= min(a, b) <= max(a, b) < 1.0
            cells[int(a * 10) * 10 + int(b * 10)] += 1
        expected = len(values) / 100
        assert sum((n - expected) ** 2 / expected for n in cells) < 160, name


def test_draws_depend_on_nothing_but_salt_project_and_task() -> None:
    assert uniforms("a", "1.2", "3") == uniforms("a", "1.2", "3")
    assert len({uniforms(*key) for key in [("a", "1", "23"), ("a", "12", "3"), ("a1", "2", "3"), ("a", "1", "2")]}) == 4
    assert uniforms("a", "1", "\ud800\x00") != uniforms("a", "1", "\ud800")


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ("Uniform sampling", Order.UNIFORM),
        ("Sequential sampling", Order.SEQUENTIAL),
        ("Uncertainty sampling", Order.REVIEW),
        ("uniform", Order.UNIFORM),
        ("", None),
        (None, None),
        ("Sampling by moon", None),
    ],
)
def test_order_of_a_sampling(sampling: str | None, expected: Order | None) -> None:
    assert order_of(sampling) is expected


def test_shares_of_a_draw_and_one_number_for_audit_and_blindness() -> None:
    shares = {"audit_share": 0.2, "blind": 0.1}
    tasks = [str(task) for task in range(4000)]
    review = {task: draw_task("s", "1.2", task, order=Order.REVIEW, **shares) for task in tasks}
    uniform = {task: draw_task("s", "1.2", task, order=Order.UNIFORM, **shares) for task in tasks}
    audited = {task for task, draw in review.items() if draw.stream == "audit"}
    blind = {task for task, draw in uniform.items() if draw.blind}
    assert blind < audited
    assert 720 < len(audited) < 880
    assert 340 < len(blind) < 460
    assert all(review[task] == Draw("audit", uniform[task].random_order, 0.2, blind=True) for task in audited)
    assert all(review[task].selection_probability == 0.8 for task in tasks if task not in audited)
    assert {draw.stream for draw in uniform.values()} == {"uniform"}
    unknown = draw_task("s", "1.2", "7", order=None, **shares)
    assert unknown.stream == draw_task("s", "1.2", "7", order=Order.SEQUENTIAL, **shares).stream == "sequential"
    assert draw_task("s", "1.2", "7", order=Order.SHUFFLED, **shares).stream == "uniform"
    assert not any(draw_unshown("s", "1.2", task).blind for task in tasks)


def worst(seen: OrderHistory, moment: datetime) -> Order | None:
    return next(iter(orders_at(seen, moment)), None)


def test_order_over_time() -> None:
    seen = history((0, Order.UNIFORM), (10, Order.UNIFORM), (20, Order.SEQUENTIAL), (30, Order.UNIFORM), since=-5)
    expected = {
        -6: None,
        -5: Order.UNIFORM,
        0: Order.UNIFORM,
        5: Order.UNIFORM,
        10: Order.UNIFORM,
        11: Order.SEQUENTIAL,  # it changed at some moment between: the worse is assumed
        20: Order.SEQUENTIAL,
        29: Order.SEQUENTIAL,
        30: Order.UNIFORM,
        9999: Order.UNIFORM,
    }
    assert {minutes: worst(seen, at(minutes)) for minutes in expected} == expected
    assert worst(history(), NOON) is None
    assert worst(history((0, Order.UNIFORM), (0, Order.REVIEW)), NOON) is Order.REVIEW
    assert worst(history((0, Order.SEQUENTIAL), shuffled=True), NOON) is Order.SHUFFLED


def test_history_does_not_depend_on_the_order_of_news() -> None:
    seen = [(0.0, Order.UNIFORM), (5.0, Order.REVIEW), (5.0, Order.UNIFORM), (9.0, Order.SEQUENTIAL)]
    assert len({history(*order) for order in permutations(seen)}) == 1


def test_uniform_order_counts_and_unshuffled_order_does_not() -> None:
    seen = history((0, Order.UNIFORM), (10, Order.SEQUENTIAL))
    assert exclusion_of(PLAIN, seen, at(0)) is None
    assert exclusion_of(PLAIN, seen, at(20)) == "sequential"
    assert exclusion_of(BLIND, seen, at(20)) == "sequential"
    declared = history((0, Order.UNIFORM), (10, Order.SEQUENTIAL), shuffled=True)
    assert exclusion_of(PLAIN, declared, at(20)) is None


def test_after_review_order_only_blind_tasks_count_for_ever() -> None:
    seen = history((0, Order.UNIFORM), (8, Order.UNIFORM), (10, Order.REVIEW), (20, Order.UNIFORM), since=-1)
    assert review_began(seen) == at(8)
    assert [exclusion_of(QUEUED, seen, at(m)) for m in (-1, 0, 8, 8.1, 10, 15, 20, 99)] == [None] * 3 + ["queue"] * 5
    assert {exclusion_of(BLIND, seen, at(m)) for m in (-1, 0, 8, 9, 10, 15, 20, 99)} == {None}
    # A task that was drawn blind under uniform order shows nothing under review order either.
    assert exclusion_of(Draw("uniform", 0.5, 1.0, blind=True), seen, at(15)) is None
    assert exclusion_of(PLAIN, seen, at(15)) == "queue"


def test_review_from_the_start() -> None:
    late = history((0, Order.REVIEW), (5, Order.UNIFORM), since=100)  # old news, heard after they were made
    assert [exclusion_of(PLAIN, late, at(m)) for m in (-1, 0, 5, 50, 200)] == ["undrawn"] + ["queue"] * 4
    early = history((0, Order.REVIEW), since=-10)
    assert [exclusion_of(PLAIN, early, at(m)) for m in (-11, -10, -1, 0, 1)] == ["undrawn"] + ["queue"] * 4


def test_what_nothing_is_known_about_does_not_count() -> None:
    seen = history((0, Order.UNIFORM), since=0)
    assert exclusion_of(None, seen, NOON) == "undrawn"
    assert exclusion_of(PLAIN, seen, at(-1)) == "undrawn"
    assert exclusion_of(PLAIN, seen, None) == "undrawn"
    assert exclusion_of(PLAIN, history(), NOON) == "undrawn"


def test_a_file_that_its_owner_vouches_for_counts() -> None:
    assert exclusion_of(Draw("file", 0.5, 1.0, blind=False), history((0, Order.REVIEW)), None) is None


@given(st.data())
def test_lost_news_leave_labels_out_and_never_let_a_wrong_one_in(data: st.DataObject) -> None:
    """As long as each order was seen once while it was in force."""
    orders = st.sampled_from([Order.UNIFORM, Order.SEQUENTIAL, Order.REVIEW])
    segments = data.draw(st.lists(st.tuples(orders, st.integers(1, 5)), min_size=1, max_size=6))
    truth = [order for order, minutes in segments for _ in range(minutes)]
    everything = history(*enumerate(truth), since=0)
    heard, begin = [], 0
    for order, minutes in segments:
        spoken = data.draw(st.sets(st.integers(begin, begin + minutes - 1), min_size=1))
        heard += [(float(each), order) for each in spoken]
        begin += minutes
    partly = history(*heard, since=0)
    for minute in range(len(truth)):
        for draw in (PLAIN, QUEUED, BLIND):
            if exclusion_of(draw, partly, at(minute)) is None:
                assert exclusion_of(draw, everything, at(minute)) is None
