"""The figures of a project's worth on either database, against counts made by hand from what the project is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from sqlalchemy import event

from backend.calibration.order import record_order
from backend.domain.records import AnnotationRecord, TextSpan
from backend.domain.streams import Order
from backend.store import Store
from backend.store.labels import record_annotation
from backend.store.tables import LabelHistory, ServedSet
from backend.store.worth import first_submissions
from backend.worth import accuracy, times
from backend.worth import measure as measuring
from backend.worth.measure import measure
from backend.worth.sample import read_sample
from conformal.estimates import IDLE_CAP, Counts, estimate_errors, estimate_rates, forecast_total, plain_rates
from tests.support.databases import Databases, migrate
from tests.support.worth_world import (
    ASSISTED,
    BLIND,
    LEFT,
    LOC,
    NOON,
    PER,
    SETTINGS,
    TARGET,
    TASKS,
    Made,
    World,
    make_world,
    open_world,
    submit,
)


@pytest.fixture
def world(databases: Databases) -> Iterator[World]:
    def fill(url: str) -> None:
        migrate(url)
        with Store(url) as store:
            make_world(store)

    with databases.copy("worth", fill) as url, Store(url) as store:
        yield open_world(store)


def measured(world: World) -> dict[str, Any]:
    with world.store.read() as session:
        return measure(session, world.project, world.model, target=TARGET, settings=SETTINGS)


def counted(tasks: list[Made], *names: str) -> Counts:
    """What labels find, of entities with these labels."""
    kept = [({s for s in t.best if s.label in names}, {s for s in t.said if s.label in names}) for t in tasks]
    columns = [[len(best & said), len(best), len(said)] for best, said in kept]
    return Counts(*np.array(columns, dtype=float).reshape(-1, 3).T)


def guessed(tasks: list[Made], *names: str) -> Counts:
    """What the model expects: the chances of its spans, and of those at its places."""
    rows = []
    for task in tasks:
        person, place = task.chances
        chances = {"PER": person + 0.03, "LOC": place + 0.02}  # each place may be the other label too
        right = sum({"PER": person, "LOC": place}[span.label] for span in task.best if span.label in names)
        rows.append([right, sum(span.label in names for span in task.best), sum(chances[name] for name in names)])
    return Counts(*np.array(rows, dtype=float).reshape(-1, 3).T)


def values(estimate: Any) -> Any:
    return pytest.approx([estimate.value, estimate.low, estimate.high])


BLIND_ONES = [task for task in TASKS if task.labelled and task.blind]
SEEN = [task for task in TASKS if task.labelled and not task.blind]


def test_how_good_follows_from_blind_labels_and_expectations(world: World) -> None:
    assert (len(BLIND_ONES), len(SEEN)) == (BLIND, ASSISTED)
    total, *others = measured(world)["accuracy"]
    for row, names in ((total, ("PER", "LOC")), (others[0], ("PER",)), (others[1], ("LOC",))):
        truth, guess = counted(BLIND_ONES, *names), guessed(BLIND_ONES, *names)
        rates = estimate_rates(truth, guess, collection=guessed(TASKS, *names))
        naive = plain_rates(counted(SEEN, *names))
        assert (row["labels"], row["assisted"], row["missing"]) == (BLIND, ASSISTED, 0)
        for rate in ("f1", "precision", "recall"):
            assert row[rate] == values(getattr(rates, rate)), (row["name"], rate)
            assert row[f"naive_{rate}"] == pytest.approx(getattr(naive, rate).value)
            assert row[f"gap_{rate}"] == pytest.approx(row[f"naive_{rate}"] - row[rate][0])
    assert [(row["scope"], row["name"]) for row in others] == [
        ("label", "PER"),
        ("label", "LOC"),
        ("language", "de"),
        ("language", "en"),
    ]
    german = sum(task.language == "de" for task in BLIND_ONES)
    assert others[2]["missing"] == 200 - german
    assert others[2]["f1"] is None
    assert total["gap_f1"] > 0.02, "with a prelabel in view errors stay, which looks better than it is"


def test_before_enough_labels_it_says_how_many_are_missing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy, "LEAST_LABELS", BLIND + 40)
    row = measured(world)["accuracy"][0]
    assert (row["f1"], row["missing"], row["labels"]) == (None, 40, BLIND)
    assert row["naive_f1"] is not None


def test_what_was_saved_is_read_off_first_submissions(world: World) -> None:
    found = measured(world)["saving"]
    logs = {(task.blind, task.person): [] for task in TASKS if task.labelled}
    for task in BLIND_ONES + SEEN:
        logs[task.blind, task.person].append(np.log(task.seconds))
    differences, weights = [], []
    for person in (3, 4):
        blind, seen = logs[True, person], logs[False, person]
        differences.append(np.mean(seen) - np.mean(blind))
        weights.append(len(blind) * len(seen) / (len(blind) + len(seen)))
    expected = float(np.exp(np.average(differences, weights=weights)))
    total = found["total"]
    assert (total["blind"], total["assisted"]) == (BLIND, ASSISTED)
    assert total["ratio"] == pytest.approx(expected)
    assert total["low"] < 0.8 < total["high"]
    assert total["verdict"] == "saves"
    assert total["blind_seconds"] == pytest.approx(np.mean([task.seconds for task in BLIND_ONES]))
    assert {each["person"] for each in found["people"]} == {3, 4}
    before = found["total"]
    with world.store.write() as session:  # an edit adds to the time, and is no first submission
        for task in SEEN[:30]:
            submit(session, world, task, spans=(TextSpan(0, 11, "LOC"),), later=1.0)
    again = measured(world)
    assert again["saving"]["total"] == before
    assert again["edits"]["kept"] == sum(len(set(task.best) & set(task.said)) for task in SEEN)


def test_a_time_that_cannot_be_is_no_time(world: World) -> None:
    before = measured(world)["saving"]
    with world.store.write() as session:
        for task, seconds in zip(TASKS[-3:], (-5.0, None, 0.0), strict=True):
            said = AnnotationRecord(
                9000 + task.number, task.at, (), created_at=task.at, lead_time=seconds, completed_by=3
            )
            record_annotation(session, world.tasks[task.number], said)
    after = measured(world)["saving"]
    assert after["left_out"] == {"no time": 2}
    assert after["submissions"] == before["submissions"] + 1


def test_times_of_another_order_do_not_count(world: World) -> None:
    with world.store.write() as session:
        moment = NOON + timedelta(minutes=100, seconds=30)
        record_order(session, world.project.id, order=Order.UNIFORM, at=moment, source="sync")
        record_order(session, world.project.id, order=Order.REVIEW, at=moment + timedelta(seconds=1), source="queue")
    found = measured(world)
    assert found["saving"]["submissions"] == 101
    assert found["saving"]["left_out"] == {"order": BLIND + ASSISTED - 101}
    assert found["left"]["seconds"] is None
    assert found["left"]["errors"]["corrected"] is False


def test_what_was_done_is_counted_span_by_span(world: World) -> None:
    found = measured(world)["edits"]
    counts: Counter[str] = Counter()
    for task in SEEN:
        best, said = set(task.best), set(task.said)
        counts.update(kept=len(best & said), deleted=len(best - said), added=len(said - best))
        counts["untouched"] += best == said
    assert found["tasks"] == ASSISTED
    assert {name: found[name] for name in counts} == dict(counts)
    assert (found["moved"], found["relabelled"]) == (0, 0)
    assert sum(each["tasks"] for each in found["people"]) == ASSISTED


def test_what_is_left_is_counted_and_corrected(world: World) -> None:
    found = measured(world)["left"]
    rest = [task for task in TASKS if not task.labelled]
    open_ones = [task for task in rest if not task.blind]
    assert (found["tasks"], found["left"], found["blind"]) == (len(TASKS), LEFT, LEFT - len(open_ones))
    assert found["places"] == sum(task.number % 3 for task in open_ones)
    assert found["with_places"] == sum(task.number % 3 > 0 for task in open_ones)
    assert found["without_places"] == sum(task.number % 3 == 0 for task in open_ones)
    names = ("PER", "LOC")
    errors = estimate_errors(
        counted(BLIND_ONES, *names), guessed(BLIND_ONES, *names), collection=guessed(rest, *names), tasks=LEFT
    )
    assert errors is not None
    assert [found["errors"][name] for name in ("value", "low", "high")] == pytest.approx(
        [LEFT * each for each in (errors.value, errors.low, errors.high)]
    )
    times = [np.minimum([task.seconds for task in arm], IDLE_CAP) for arm in (BLIND_ONES, SEEN)]
    parts = [
        forecast_total(times[0], left=LEFT - len(open_ones)),
        forecast_total(times[1], left=len(open_ones)),
    ]
    assert found["seconds"]["total"] == pytest.approx(sum(part.total for part in parts if part is not None))


def test_people_who_labelled_the_same_task_are_compared(world: World) -> None:
    with world.store.write() as session:
        for number, task in enumerate(BLIND_ONES[:10]):
            spans = (PER, LOC) if number < 5 else ()
            second = AnnotationRecord(
                5000 + task.number, task.at, spans, created_at=task.at + timedelta(hours=1), completed_by=99
            )
            record_annotation(session, world.tasks[task.number], second)
    found = measured(world)["agreement"]
    pairs = [(set(task.said), {PER, LOC} if number < 5 else set()) for number, task in enumerate(BLIND_ONES[:10])]
    same = sum(len(one & other) for one, other in pairs)
    assert (found["tasks"], found["pairs"]) == (10, 10)
    assert found["exact"] == pytest.approx(2 * same / sum(len(one) + len(other) for one, other in pairs))


def test_a_sample_stands_for_the_collection(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    few = 90
    monkeypatch.setattr(measuring, "read_sample", partial(read_sample, most=few))
    found = measured(world)["left"]
    assert (found["tasks"], found["sampled"]) == (len(TASKS), few)
    drawn = sorted(TASKS, key=lambda task: (task.number * 0.618) % 1)[:few]
    assert found["left"] == round(sum(not task.labelled for task in drawn) * len(TASKS) / few)


def forget_sets_of_labelled(world: World) -> None:
    """Make it as after a new model: it was asked about what is left and about blind labels, not about what was done."""
    done = [world.tasks[task.number] for task in SEEN]
    with world.store.write() as session:
        session.execute(sa.delete(ServedSet).where(ServedSet.task_id.in_(done)))


def test_tasks_that_were_done_before_a_model_came_count_as_done(world: World) -> None:
    before = measured(world)["left"]
    forget_sets_of_labelled(world)
    after = measured(world)["left"]
    assert {name: after[name] for name in ("tasks", "left", "places")} == {
        name: before[name] for name in ("tasks", "left", "places")
    }


def test_where_easy_tasks_are_left_expectations_of_them_do_not_speak_for_all(world: World) -> None:
    with world.store.write() as session:
        record_order(session, world.project.id, order=Order.REVIEW, at=NOON + timedelta(days=10), source="sync")
    everywhere = estimate_rates(
        counted(BLIND_ONES, "PER", "LOC"), guessed(BLIND_ONES, "PER", "LOC"), collection=guessed(TASKS, "PER", "LOC")
    )
    assert measured(world)["accuracy"][0]["f1"] == values(everywhere.f1), "the model was asked about all: they stand"
    forget_sets_of_labelled(world)
    alone = plain_rates(counted(BLIND_ONES, "PER", "LOC"))
    assert measured(world)["accuracy"][0]["f1"] == values(alone.f1)


def test_submissions_are_read_in_the_order_of_an_index(world: World) -> None:
    """A page sorts nothing: else every page would read all annotations of the project."""
    if world.store.engine.dialect.name != "sqlite":
        pytest.skip("what is asked of the plan is SQLite's way to say it")
    plans = []

    def explain(connection: Any, _cursor: Any, statement: str, parameters: Any, *_rest: Any) -> None:
        if "FROM annotations" in statement and not statement.startswith("EXPLAIN"):
            rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
            plans.append([row[3] for row in rows])

    with world.store.read() as session:
        event.listen(world.store.engine, "before_cursor_execute", explain)
        try:
            found, end = first_submissions(session, world.project.id, before=1100, limit=50)
        finally:
            event.remove(world.store.engine, "before_cursor_execute", explain)
    assert ([each.id for each in found], end) == (list(range(1099, 1049, -1)), 1050)
    assert len(plans) == 1
    assert not any("TEMP B-TREE" in step for step in plans[0])


def test_a_page_of_which_nothing_is_known_any_more_is_passed_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(times, "PAGE", 20)
    with world.store.write() as session:
        session.execute(sa.delete(LabelHistory).where(LabelHistory.annotation_id >= 1000 + BLIND + ASSISTED - 40))
    assert measured(world)["saving"]["submissions"] == BLIND + ASSISTED - 40


def test_labels_are_read_page_by_page(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = measured(world)["accuracy"]
    monkeypatch.setattr(accuracy, "PAGE", 7)
    assert measured(world)["accuracy"] == whole
