"""The monitors on both databases: a label is judged once, can take its judgement back, feeds the martingale once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import numpy as np
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.calibration.adaptive import level_of, switch_adaptive
from backend.domain.ranked import RankedList, one_unit
from backend.domain.records import AnnotationRecord, Draw, SequenceScores, Served, TextSpan
from backend.monitoring.alarms import find_alarms
from backend.monitoring.monitor import PAGE, Monitor
from backend.monitoring.report import coverage_report, gap_report, monitor_report
from backend.store import Store
from backend.store.batches import NewTask, ensure_tasks
from backend.store.calibration import record_scores
from backend.store.engine import database_now
from backend.store.judgements import UNITS, WHOLE, CoverageRow, coverage_rows
from backend.store.labels import delete_annotation, labels_of, record_annotation
from backend.store.monitor import QUIET, acknowledge_alarm, list_alarms, list_monitors, load_monitor
from backend.store.packed_lists import pack_ranked
from backend.store.projects import ensure_model, ensure_project
from backend.store.served import record_served
from backend.store.tables import Alarm, CoverageCount, Judgement, MonitorRow

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
BEFORE = NOW - timedelta(hours=1)
SPAN = TextSpan(0, 1, "PER")
LIST = pack_ranked(one_unit(RankedList(("PER",), (math.log(0.6), math.log(0.3)), ((SPAN,), ()), exhausted=True)))


class World:
    def __init__(self, store: Store) -> None:
        self.store = store
        with store.write() as session:
            self.project = ensure_project(session, "1.1")
            self.model = ensure_model(session, "m", "ab", classes=["PER"])
        self.monitor = Monitor(store, alpha="0.1")
        self._open: Session | None = None

    @contextmanager
    def together(self) -> Iterator[None]:
        """Do everything inside in one transaction: a commit for each row is what takes the time."""
        with self.store.write() as self._open:
            yield
        self._open = None

    @contextmanager
    def _writing(self) -> Iterator[Session]:
        if self._open is not None:
            yield self._open
        else:
            with self.store.write() as session:
                yield session

    def task(self, number: int, *, blind: bool = True) -> int:
        draw = Draw("uniform", (number * 0.618) % 1, 1.0, blind=blind)
        with self._writing() as session:
            [task] = ensure_tasks(session, self.project.id, [NewTask(str(number), f"text {number}", "de", 2, draw)])
        return task.id

    def serve(self, task: int, *, size: int | None = 1, tau: float = 1.0, at: datetime = BEFORE) -> None:
        with self._writing() as session:
            record_served(
                session,
                [
                    Served(task, self.model.id, None, True, "de/1-10", "de/*", "own", 199, tau, size is None, size, 2,
                           LIST, at, alpha="0.1")
                ],
            )  # fmt: skip

    def label(
        self,
        task: int,
        *,
        rank: float = 1.0,
        nll: float = 0.5,
        evidence: str = "blind",
        exclusion: str | None = None,
        annotation: int | None = None,
        at: datetime = NOW,
        stratum: str = "de/1-10",
        spans: tuple[TextSpan, ...] = (SPAN,),
    ) -> None:
        with self._writing() as session:
            record_annotation(session, task, AnnotationRecord(annotation or task, at, spans, created_at=NOW))
            revision = labels_of(session, [task])[task].revision
            record_scores(
                session, self.project.id, model_id=self.model.id, task_id=task, label_revision=revision,
                stratum=stratum, evidence=evidence, scores=SequenceScores(nll, rank, 0.6), exclusion=exclusion,
            )  # fmt: skip

    def watch(self) -> object:
        return self.monitor.watch(self.project, model=self.model)

    def rows(self) -> list[CoverageRow]:
        with self.store.read() as session:
            rows = coverage_rows(session, self.project.id, model_id=self.model.id)
        return [row for row in rows if row.scope not in {UNITS, WHOLE}]

    def recount(self) -> dict[tuple[str, str], int]:
        with self.store.read() as session:
            found = session.execute(sa.select(Judgement.kind, Judgement.stratum)).all()
        counts: dict[tuple[str, str], int] = {}
        for kind, stratum in found:
            counts[kind, stratum] = counts.get((kind, stratum), 0) + 1
        return counts


@pytest.fixture
def world(store: Store) -> World:
    return World(store)


def test_what_was_shown_is_judged_once(world: World) -> None:
    held, missed, blank = (world.task(i) for i in range(3))
    world.serve(held, size=2)
    world.serve(held, size=0, at=NOW + timedelta(hours=1))  # served after the label: not what was in view
    world.serve(missed, size=1)
    world.label(held, rank=2.0)
    world.label(missed, rank=2.0)
    world.label(blank)  # nothing was ever served for it
    done = world.watch()
    assert (done.looked, done.judged, done.consumed) == (3, 2, 3)
    [row] = world.rows()
    assert (row.kind, row.name, row.pool, row.n, row.alpha, row.guarantee) == (
        "blind", "de/1-10", "de/*", 199, "0.1", "own",
    )  # fmt: skip
    assert (row.tasks, row.total, row.covered, row.shown, row.accepted, row.singleton, row.size) == (
        2,
        2,
        1,
        2,
        0,
        1,
        3,
    )
    again = world.watch()
    assert (again.looked, again.judged, again.consumed) == (0, 0, 0)
    assert world.rows() == [row]
    # A monitor that forgot everything goes on where the last one ended.
    world.monitor = Monitor(world.store)
    assert world.watch().looked == 0


def test_an_edited_label_takes_its_judgement_back(world: World) -> None:
    task = world.task(1)
    world.serve(task, size=1)
    world.label(task, rank=1.0)
    world.watch()
    assert world.rows()[0].covered == 1
    with world.store.write() as session:
        record_annotation(session, task, AnnotationRecord(task, NOW + timedelta(minutes=5), (), created_at=NOW))
    assert world.rows() == []  # withdrawn with the row, in the same transaction
    world.label(task, rank=2.0, at=NOW + timedelta(minutes=5), spans=())
    done = world.watch()
    assert (done.judged, done.consumed) == (1, 0)  # what the martingale consumed stays as it was
    [row] = world.rows()
    assert (row.tasks, row.covered) == (1, 0)
    with world.store.read() as session:
        assert session.execute(sa.select(MonitorRow.score)).scalars().all() == [0.5]
    with world.store.write() as session:
        delete_annotation(session, world.project.id, annotation_id=task, at=NOW + timedelta(hours=1))
    assert world.rows() == []
    assert world.recount() == {}


def test_late_news_count_a_judgement_under_another_kind(world: World) -> None:
    task = world.task(1, blind=False)
    world.serve(task)
    world.label(task, evidence="assisted")
    world.watch()
    assert [row.kind for row in world.rows()] == ["assisted"]
    world.label(task, evidence="assisted", exclusion="queue")
    assert [row.kind for row in world.rows()] == ["excluded"]
    world.watch()
    assert [(row.kind, row.tasks) for row in world.rows()] == [("excluded", 1)]


def test_only_blind_rows_that_count_feed_the_martingale(world: World) -> None:
    kinds = [("blind", None), ("assisted", None), ("blind", "queue"), ("file", None)]
    for i, (evidence, exclusion) in enumerate(kinds):
        world.label(world.task(i), evidence=evidence, exclusion=exclusion)
    assert world.watch().consumed == 1


def test_counters_equal_a_recount_after_many_labels(world: World) -> None:
    rng = np.random.default_rng(3)
    with world.together():
        tasks = [world.task(i) for i in range(PAGE + 9)]
        for task in tasks:
            world.serve(task, size=int(rng.integers(0, 4)))
            world.label(task, rank=float(rng.integers(1, 5)), evidence=str(rng.choice(["blind", "assisted"])))
    assert world.watch().looked == PAGE + 9
    for task in tasks[:9]:
        with world.store.write() as session:
            delete_annotation(session, world.project.id, annotation_id=task, at=NOW + timedelta(hours=1))
    counted = {(row.kind, row.name): row.tasks for row in world.rows()}
    assert counted == world.recount()
    assert sum(counted.values()) == PAGE
    with world.store.read() as session:
        sums = session.execute(sa.select(sa.func.min(CoverageCount.covered), sa.func.min(CoverageCount.total))).one()
        assert min(sums) >= 0


def test_a_planted_shift_raises_one_alarm_that_stands(world: World) -> None:
    rng = np.random.default_rng(5)
    with world.together():
        for i in range(60):
            world.label(world.task(i), nll=float(rng.exponential()))
    assert world.watch().alarms == ()
    with world.together():
        for i in range(60, 150):
            world.label(world.task(i), nll=float(5 + rng.exponential()))
    assert "drift:" in world.watch().alarms
    with world.store.read() as session:
        [alarm] = list_alarms(session, world.project.id)
        state = load_monitor(session, world.project.id, model_id=world.model.id, kind="drift")
        assert state is not None
        assert state.consumed == 150
        report = monitor_report(session, world.project, world.model, n_min=100)
    assert alarm.kind == "drift"
    assert "imported lately" in alarm.message
    assert report["alarms"][0]["advice"]
    assert report["drift"]["martingales"][0]["labels"] == 150
    # Seen by somebody, it rests, and stands again later because it still holds.
    with world.store.write() as session:
        acknowledge_alarm(session, world.project.id, alarm_id=alarm.id)
    world.label(world.task(190), nll=7.0)
    world.watch()
    with world.store.write() as session:
        assert len(list_alarms(session, world.project.id)) == 1
        session.execute(sa.update(Alarm).values(acknowledged_at=database_now(session) - QUIET))
    world.label(world.task(191), nll=7.0)
    world.watch()
    with world.store.read() as session:
        assert [each.acknowledged_at is None for each in list_alarms(session, world.project.id)] == [True, False]
    # The state in the database is the state in memory: a monitor that starts anew bets alike.
    other = Monitor(world.store)
    world.label(world.task(200), nll=7.0)
    with world.store.read() as session:
        before = list_monitors(session, world.project.id, model_id=world.model.id, kind="drift")
    other.watch(world.project, model=world.model)
    with world.store.read() as session:
        after = list_monitors(session, world.project.id, model_id=world.model.id, kind="drift")
    assert [each.consumed for each in after] == [each.consumed + 1 for each in before]


def test_languages_are_watched_apart_once_there_are_several(world: World) -> None:
    with world.together():
        for i in range(30):
            world.label(world.task(i), nll=1.0 + i / 100, stratum="de/1-10" if i % 2 else "fr/1-10")
    world.watch()
    with world.store.read() as session:
        found = list_monitors(session, world.project.id, model_id=world.model.id, kind="drift")
        report = monitor_report(session, world.project, world.model, n_min=100)
    assert [(each.stratum, each.consumed) for each in found] == [("", 30), ("de", 15), ("fr", 15)]
    assert report["drift"]["alarm_at"] == 60.0


def test_the_report_says_what_to_do(world: World) -> None:
    for i in range(4):
        task = world.task(i, blind=i < 2)
        world.serve(task, size=2)
        world.label(task, rank=1.0 + i % 2, evidence="blind" if i < 2 else "assisted")
    world.watch()
    with world.store.read() as session:
        report = monitor_report(session, world.project, world.model, n_min=100)
        nothing = monitor_report(session, world.project, None, n_min=100)
    assert "advice" in nothing
    overall = report["coverage"]["overall"]["blind"]
    assert (overall["judged"], overall["covered"], overall["coverage"], overall["mean_size"]) == (2, 2, 1.0, 2.0)
    assert overall["interval_95"][1] == 1.0
    assert [each["language"] for each in report["coverage"]["languages"]] == ["de", "de"]
    assert [each["length"] for each in report["coverage"]["lengths"]] == ["1-10", "1-10"]
    assert report["coverage"]["pools"][0]["p_value"] == 1.0
    assert report["gap"]["gap"] == 0.0
    assert report["evidence"]["needed"] == 98
    assert report["days"] == [
        {"day": "2026-05-04", "kind": "assisted", "judged": 2, "covered": 2},
        {"day": "2026-05-04", "kind": "blind", "judged": 2, "covered": 2},
    ]
    for part in ("evidence", "coverage", "drift", "gap", "skips"):
        assert report[part]["advice"]


def row(kind: str, **counts: int) -> CoverageRow:
    sums = (
        dict.fromkeys(("tasks", "total", "covered", "shown", "accepted", "open", "empty", "singleton", "size"), 0)
        | counts
    )
    return CoverageRow("stratum", "de/1-10", kind, 3, "de/*", 199, "0.1", "own", **sums)


def test_coverage_far_below_its_law_is_an_alarm_and_near_it_is_not() -> None:
    good = row("blind", tasks=500, total=500, covered=440)
    bad = row("blind", tasks=500, total=500, covered=350)
    assert find_alarms([good]) == []
    assert find_alarms([bad], adaptive={3}) == [], "it promised the long run alone"
    second = replace(row("blind", tasks=60, total=60, covered=37), version_id=9, alpha="0.1234")
    assert [alarm.kind for alarm in find_alarms([second])] == ["coverage"]
    assert find_alarms([good, second]) == [], "later alphas share what the first one left of the error"
    assert [alarm.kind for alarm in find_alarms([bad])] == ["coverage"]
    assert coverage_report([bad])["below_target_p"] < 1e-4
    assert coverage_report([good])["below_target_p"] > 0.1


def test_a_gap_is_an_alarm_when_no_chance_explains_it() -> None:
    seen = row("assisted", tasks=1000, total=1000, covered=950, accepted=900)
    blind = row("blind", tasks=300, total=300, covered=270, accepted=200)
    assert [alarm.kind for alarm in find_alarms([seen, blind])] == ["gap"]
    assert gap_report([seen, blind])["detected"]
    assert not gap_report([row("assisted", tasks=10, accepted=9), row("blind", tasks=10, accepted=8)])["detected"]


def test_an_adaptive_level_follows_the_misses_of_audited_tasks_once(world: World) -> None:
    with world.store.write() as session:
        switch_adaptive(session, world.project.id, on=True)
    for i, rank in enumerate((2.0, 1.0, 1.0)):  # a miss, then two sets that hold the label
        task = world.task(i)
        world.serve(task, size=1)
        world.label(task, rank=rank)
    world.watch()
    world.watch()
    with world.store.read() as session:
        level, about = level_of(session, world.project, model_id=world.model.id, alpha="0.1")
        assert about == {"target": "0.1", "level": level, "audited": 3, "promise": "long-run"}
        assert Decimal(level) == Decimal("0.1") - Decimal("0.005") * Decimal("0.9") + 2 * Decimal("0.005") * Decimal(
            "0.1"
        )
        assert monitor_report(session, world.project, world.model, n_min=10)["adaptive"]["on"]
        assert level_of(session, world.project, model_id=world.model.id, alpha="0.2")[0] == "0.2"  # another target
    with world.store.write() as session:
        switch_adaptive(session, world.project.id, on=False)
    with world.store.read() as session:
        assert level_of(session, world.project, model_id=world.model.id, alpha="0.1") == ("0.1", None)
