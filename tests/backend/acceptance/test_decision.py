"""When decisions are due, what they rest on, and what withdraws them: on either database."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from sqlalchemy.orm import Session

from backend.acceptance.decision import Standing, Wish, decide, stand
from backend.acceptance.evidence import gather
from backend.acceptance.report import acceptance_report
from backend.acceptance.server import is_free, is_touched, our_annotation, unique_id
from backend.acceptance.watch import watch_accepted, withdraw_drifted
from backend.calibration.order import record_order
from backend.domain.ranked import RankedList, one_unit
from backend.domain.records import (
    AcceptanceRecord,
    AnnotationRecord,
    Draw,
    ModelRecord,
    ProjectRecord,
    SequenceScores,
    Served,
    TextSpan,
)
from backend.domain.streams import Order, draw_task
from backend.domain.target import Target, TextTag
from backend.errors import StoreConflict
from backend.jobs.kinds import Kind, is_pending
from backend.monitoring.monitor import Monitor
from backend.settings import load_settings
from backend.store import Store
from backend.store.acceptance import Shadow, act_on, list_acceptances, load_shadows, record_acceptance
from backend.store.batches import NewTask, ensure_tasks
from backend.store.calibration import record_scores
from backend.store.labels import record_annotation
from backend.store.monitor import list_alarms
from backend.store.packed_lists import pack_ranked
from backend.store.projects import ensure_model, ensure_project
from backend.store.served import record_served
from backend.store.state import ensure_salt
from conformal.errors import InvalidArgument
from conformal.risk.acceptance import Promise

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
PER = TextSpan(0, 1, "PER")
TARGET = Target("label", TextTag("text", "text", is_url=False), {"PER": "PER"}, {"PER": "PER"}, None, "")
FIVE = Wish("0.05")
RECORD = AcceptanceRecord(
    id=1,
    project_id=1,
    number=1,
    model_id=1,
    version_id=None,
    promise="all",
    max_error="0.05",
    delta=0.025,
    labels=125,
    tasks=400,
    level=0.1,
    share=0.5,
    below=60,
    lost=1.0,
    bound=0.04,
    why="",
    decided_at=NOON,
    decided_by="me",
)


def listed(doubt: float) -> bytes:
    ranked = RankedList(("PER",), (math.log1p(-doubt),), ((PER,),), exhausted=False)
    return pack_ranked(one_unit(ranked))


@dataclass
class World:
    """A project under uniform order: every task served, its doubt rising with its number."""

    store: Store
    project: ProjectRecord
    model: ModelRecord
    salt: str
    tasks: dict[str, int] = field(default_factory=dict)
    draws: dict[str, Draw] = field(default_factory=dict)

    def add(self, names: Sequence[str], *, blind: float) -> None:
        fresh = {
            name: draw_task(self.salt, self.project.uid, name, order=Order.UNIFORM, audit_share=0.1, blind=blind)
            for name in names
        }
        with self.store.write() as session:
            kept = ensure_tasks(
                session,
                self.project.id,
                [NewTask(name, f"a {name}", draw=draw, created_at=NOON) for name, draw in fresh.items()],
            )
            self.tasks |= {name: task.id for name, task in zip(names, kept, strict=True)}
            self.draws |= fresh
            record_served(session, [self.served(name, self.model.id) for name in names])

    def served(self, name: str, model: int) -> Served:
        doubt = int(name) / 1_000
        return Served(
            task_id=self.tasks[name],
            model_id=model,
            version_id=None,
            shadow=self.draws[name].blind,
            stratum="en/1-10",
            pool="en/*",
            guarantee="own",
            n=100,
            tau=1.0,
            is_open=False,
            set_size=1,
            shown=1,
            ranked=listed(doubt),
            served_at=NOON,
            priority=0.5,
            flags=0,
            doubt=doubt,
        )

    @property
    def blind(self) -> list[str]:
        return [name for name, draw in self.draws.items() if draw.blind]

    def label(
        self,
        names: Sequence[str],
        *,
        wrong: Sequence[str] = (),
        model: int | None = None,
        at: int = 0,
        nll: Callable[[str], float] = lambda _: 0.1,
    ) -> None:
        with self.store.write() as session:
            for place, name in enumerate(names):
                spans = () if name in wrong else (PER,)
                when = NOON + timedelta(minutes=at + place)
                task = self.tasks[name]
                made = AnnotationRecord(int(name), when, spans, created_at=when, lead_time=1.0)
                (change,) = record_annotation(session, task, made)
                assert change.label is not None
                record_scores(
                    session,
                    self.project.id,
                    model_id=model or self.model.id,
                    task_id=task,
                    label_revision=change.label.revision,
                    stratum="en/1-10",
                    evidence="blind",
                    scores=SequenceScores(nll(name), 1.0, 0.9, 1),
                )

    def decide(self, wish: Wish = FIVE, model: int | None = None) -> Standing:
        return self.store.run(
            lambda session: decide(
                session,
                self.project,
                wish,
                model_id=model or self.model.id,
                version_id=None,
                target=TARGET,
                who="me",
            )
        )

    def decisions(self) -> list[AcceptanceRecord]:
        with self.store.read() as session:
            return list_acceptances(session, self.project.id)


@pytest.fixture
def world(store: Store) -> World:
    with store.write() as session:
        project = ensure_project(session, "1.1")
        model = ensure_model(session, "m", "ab" * 32, classes=["PER"])
        record_order(session, project.id, order=Order.UNIFORM, at=NOON, source="sync")
        made = World(store, project, model, ensure_salt(session, project.id))
    made.add([str(number) for number in range(1, 401)], blind=0.5)
    return made


def test_a_decision_waits_for_its_number_of_labels_and_is_made_once(world: World) -> None:
    first, rest = world.blind[:124], world.blind[124:130]
    world.label(first)
    waiting = world.decide()
    assert (waiting.decision, waiting.labels, waiting.needed, waiting.next) == (None, 124, 72, 125)
    assert waiting.missing == "needs 72 blind labels, has 124: the next decision is made at 125"
    assert not world.decisions()
    world.label(rest, wrong=rest[2:], at=200)  # the sixth of them is the 130th, and no part of it
    made = world.decide().decision
    assert made is not None
    assert (made.number, made.labels, made.delta, made.lost) == (1, 125, 0.025, 0.0)
    assert made.level == pytest.approx(0.4)
    assert made.bound < 0.05
    again = world.decide()
    assert again.decision == made
    assert again.missing == "needs 94 blind labels, has 130: the next decision is made at 250"
    assert len(world.decisions()) == 1


def test_a_new_model_and_another_wish_are_decisions_of_their_own(world: World) -> None:
    names = world.blind[:130]
    world.label(names)
    world.decide()
    with world.store.write() as session:
        other = ensure_model(session, "n", "cd" * 32, classes=["PER"])
        record_served(session, [world.served(name, other.id) for name in world.tasks])
    world.label(names, model=other.id)
    changed = world.decide(model=other.id).decision
    assert changed is not None
    assert (changed.number, changed.labels, changed.model_id) == (2, 130, other.id)  # all labels, at once
    looser = world.decide(Wish("0.1"), model=other.id).decision
    assert looser is not None
    assert (looser.number, looser.labels) == (3, 125)
    assert looser.delta == pytest.approx(0.05 / 12)
    accepted = world.decide(Wish("0.1", Promise.ACCEPTED), model=other.id).decision
    assert accepted is not None
    assert (accepted.number, accepted.promise) == (4, "accepted")
    assert world.decide(model=other.id).decision == changed  # and its own stays what it was


def test_two_processes_cannot_spend_one_number(world: World) -> None:
    world.label(world.blind[:125])
    world.decide()
    values = {name: value for name, value in vars(RECORD).items() if name not in {"id", "project_id", "decided_at"}}
    with pytest.raises(StoreConflict), world.store.write() as session:
        record_acceptance(session, world.project.id, values | {"model_id": world.model.id})


def test_rows_are_thinned_when_the_share_was_changed(world: World) -> None:
    world.add([str(number) for number in range(401, 801)], blind=0.1)
    world.label(world.blind)
    with world.store.read() as session:
        rows = gather(session, world.project, model_id=world.model.id, target=TARGET)
    kept = {each.task for each in rows.labels}
    assert kept < set(world.blind)
    early = [name for name in kept if int(name) <= 400]
    assert len(early) < 80  # of about 200 that were drawn, as many as the later share would have drawn
    assert {name for name in world.blind if int(name) > 400} == kept - set(early)


def test_what_earlier_decisions_lost_counts_by_their_shadows(world: World) -> None:
    names = world.blind[:125]
    world.label(names)
    first = world.decide().decision
    assert first is not None
    lost = names[:20]
    with world.store.write() as session:
        # The labeling that it would have given to twenty tasks was empty, and people found something.
        shadows = [Shadow(world.tasks[name], () if name in lost else (PER,), 1) for name in names]
        act_on(session, first, tasks={world.tasks["1"]: unique_id("1.1", "1", 1)}, shadows=shadows, account=7)
    with world.store.read() as session:
        rows = gather(session, world.project, model_id=world.model.id, target=TARGET)
        assert len(load_shadows(session, first.id)) == 125
    assert rows.losses.sum() == 0
    assert rows.earlier.sum() == 20
    with world.store.write() as session:
        other = ensure_model(session, "n", "cd" * 32, classes=["PER"])
        record_served(session, [world.served(name, other.id) for name in world.tasks])
    world.label(names, model=other.id)
    second = world.decide(model=other.id).decision
    assert second is not None
    assert second.level is None
    assert "wrong" in second.why


@pytest.mark.parametrize(("wrong", "withdrawn"), [(0, False), (3, False), (25, True)])
def test_later_labels_withdraw_only_when_they_prove_it(world: World, wrong: int, withdrawn: bool) -> None:
    names = world.blind
    world.label(names[:125])
    decision = world.decide().decision
    assert decision is not None
    with world.store.write() as session:
        shadows = [Shadow(world.tasks[name], (PER,), 1) for name in names]
        act_on(session, decision, tasks={world.tasks["1"]: unique_id("1.1", "1", 1)}, shadows=shadows, account=7)
    later = names[125:175]
    minutes = int((datetime.now(UTC) - NOON) / timedelta(minutes=1)) + 60
    world.label(later, wrong=later[:wrong], at=minutes)
    reason = watch_accepted(world.store, world.project, model=world.model)
    assert (reason is not None) is withdrawn
    with world.store.read() as session:
        assert is_pending(session, Kind.WITHDRAW, world.project) is withdrawn


def test_an_alarm_of_drift_withdraws_in_the_transaction_that_raises_it(world: World) -> None:
    """A process may die right after the alarm, which is raised once: the withdrawal must be queued by then."""
    names = world.blind
    model = world.model
    rng = np.random.default_rng(5)
    world.label(names[:125], nll=lambda _: float(rng.random()))
    decision = world.decide().decision
    assert decision is not None
    monitor = Monitor(world.store, on_drift=withdraw_drifted)
    assert not monitor.watch(world.project, model=model).alarms
    with world.store.write() as session:
        assert not withdraw_drifted(session, world.project)  # nothing was accepted
        act_on(session, decision, tasks={world.tasks["1"]: unique_id("1.1", "1", 1)}, shadows=[], account=7)
    world.label(names[125:170], at=200, nll=lambda _: 50.0 + float(rng.random()))

    class Died(BaseException):
        """The process ends before the transaction does."""

    def die(session: Session, project: ProjectRecord) -> None:
        withdraw_drifted(session, project)
        raise Died

    def pending() -> bool:
        with world.store.read() as session:
            return is_pending(session, Kind.WITHDRAW, world.project)

    with pytest.raises(Died):
        Monitor(world.store, on_drift=die).watch(world.project, model=model)
    with world.store.read() as session:
        assert not list_alarms(session, world.project.id)
    assert not pending()
    assert any(each.startswith("drift:") for each in monitor.watch(world.project, model=model).alarms)
    assert pending()
    assert not monitor.watch(world.project, model=model).alarms


def test_the_report_says_what_can_be_accepted_and_decides_nothing(world: World) -> None:
    def report(**more: Any) -> dict[str, Any]:
        with world.store.read() as session:
            return acceptance_report(session, world.project, world.model, settings=load_settings(), **more)

    empty = report(wish=Wish("0.02"))
    assert empty["missing"] == "for 2 %: needs 183 blind labels, has 0: the next decision is made at 250"
    assert (empty["decision"], empty["acceptable"], empty["due"]) == (None, 0, False)
    world.label(world.blind[:125])
    assert report(wish=FIVE)["due"]
    assert not world.decisions()
    world.decide()
    full = report()
    assert full["max_error"] == "0.05"
    assert full["acceptable"] == len(world.tasks) - len(world.blind)
    assert "on 125 blind labels" in full["decision"]["summary"]
    assert report(count=False)["acceptable"] is None


@pytest.mark.parametrize("share", ["0", "1", "abc", "", "1.5", "nan"])
def test_a_wish_that_cannot_be_is_refused(share: str) -> None:
    with pytest.raises(InvalidArgument, match="share of errors between 0 and 1"):
        Wish(share)


def test_where_a_wish_stands_is_a_function_of_counts() -> None:
    assert stand([RECORD], FIVE, model_id=1, labels=200).decision == RECORD
    assert stand([RECORD], FIVE, model_id=1, labels=260).count == 250
    assert stand([RECORD], FIVE, model_id=2, labels=200).count == 200
    assert stand([RECORD], FIVE, model_id=2, labels=90).count is None
    older = replace(RECORD, number=2, max_error="0.1")
    assert stand([RECORD, older], FIVE, model_id=1, labels=200).decision == RECORD
    counts = [stand([RECORD] * place, Wish("0.01"), model_id=1, labels=0).needed for place in range(4)]
    assert np.all(np.diff(counts) > 0)  # every look makes the next one dearer


def test_what_people_did_is_seen_in_the_servers_answers() -> None:
    made = {"id": 5, "completed_by": {"id": 7}, "updated_by": 7, "lead_time": None, "parent_prediction": 3}
    assert not is_touched(made, account=7)
    for change in ({"lead_time": 2.0}, {"updated_by": 8}, {"ground_truth": True}):
        assert is_touched(made | change, account=7)
    assert our_annotation({"annotations": [made]}, account=7) == made
    assert our_annotation({"annotations": [made | {"lead_time": 2.0}]}, account=7) is not None
    assert our_annotation({"annotations": [made]}, account=8) is None
    assert our_annotation({"annotations": [made]}, account=8, known=5) == made
    assert our_annotation({"annotations": [made | {"parent_prediction": None}]}, account=7) is None
    free = {"annotations": [], "drafts": [], "total_annotations": 0, "cancelled_annotations": 0, "draft_exists": False}
    assert is_free(free)
    changes: list[dict[str, Any]] = [{"drafts": [{}]}, {"draft_exists": True}, {"cancelled_annotations": 1}]
    for begun in (*changes, {"annotations": [made]}):
        assert not is_free(free | begun)
