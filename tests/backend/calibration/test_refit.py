"""Refit on both databases: which rows enter, what a version says, what it is compared with (METHODS 3.7, 8.2-8.5)."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from sqlalchemy.orm import Session

from backend.calibration.evidence import Gap, row_weights
from backend.calibration.order import record_order
from backend.calibration.refit import INFINITE, refit, skip_share
from backend.calibration.schedule import LastFit, last_fit
from backend.domain.guarantee import Guarantee
from backend.domain.ranked import RankedList, one_unit
from backend.domain.records import AnnotationRecord, Draw, EntityRow, ModelRecord, ProjectRecord, SequenceScores, Served
from backend.domain.streams import Order
from backend.errors import StoreConflict
from backend.prediction.calibration import Calibration, calibration_of, version_method
from backend.store import Store
from backend.store.batches import NewTask, ensure_tasks
from backend.store.calibration import load_cells, record_scores
from backend.store.labels import record_annotation
from backend.store.packed_lists import pack_ranked
from backend.store.projects import ensure_model, ensure_project
from backend.store.served import record_served
from backend.store.skips import skipped_tasks
from backend.store.thresholds import activate_version, active_version, write_version
from conformal.class_answers import label_pools
from conformal.labels import OUTSIDE
from conformal.rows import EntityRows, TaskRows
from conformal.scores import Method
from conformal.thresholds import Thresholds, calibrate

NOW = datetime.now(UTC)
UNIFORM = Draw("uniform", 0.5, 1.0, blind=False)
BLIND = Draw("uniform", 0.5, 1.0, blind=True)
CELL = "de/1-10"


class World:
    """A project, a model, and rows as they come: the numbers are made up, everything else is real."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.count = 0
        with store.write() as session:
            self.project: ProjectRecord = ensure_project(session, "1.1")
            self.model: ModelRecord = ensure_model(session, "m", "ab", classes=["PER"])

    def add(
        self,
        scores: list[float],
        *,
        evidence: str = "blind",
        exclusion: str | None = None,
        weight: float = 1.0,
        cell: str = CELL,
        rank: float = 1.0,
    ) -> None:
        draw = UNIFORM if evidence == "assisted" else BLIND
        with self.store.write() as session:
            tasks = ensure_tasks(
                session, self.project.id, [NewTask(str(self.count + i), "a", "de", 1, draw) for i in range(len(scores))]
            )
            for task, score in zip(tasks, scores, strict=True):
                self.count += 1
                label = record_annotation(session, task.id, AnnotationRecord(self.count, NOW, ()))[0].label
                assert label is not None
                record_scores(
                    session, self.project.id, model_id=self.model.id, task_id=task.id, label_revision=label.revision,
                    stratum=cell, evidence=evidence, scores=SequenceScores(score, rank, 0.5),
                    entities=[EntityRow(0, 1, "PER", 0.9, 0.9, 1.0, 1.0)], exclusion=exclusion, weight=weight,
                )  # fmt: skip

    def refit(self, **options: object) -> object:
        return refit(self.store, self.project, model=self.model, **({"alpha": "0.2", "n_min": 10} | options))

    def skip(self, number: int, *, blind: bool = True) -> None:
        with self.store.write() as session:
            draw = BLIND if blind else UNIFORM
            tasks = [NewTask(f"s{i}", "b", "de", 2, draw) for i in range(number)]
            for task in ensure_tasks(session, self.project.id, tasks):
                self.count += 1
                record_annotation(
                    session, task.id, AnnotationRecord(self.count, NOW, (), was_cancelled=True, created_at=NOW)
                )

    def thresholds(self) -> Thresholds:
        with self.store.read() as session:
            version = active_version(session, self.project.id, model_id=self.model.id)
        assert version is not None
        return Thresholds.from_bytes(version.content)


@pytest.fixture
def world(store: Store) -> World:
    return World(store)


def steps(count: int, *, first: float = 1.0) -> list[float]:
    return (first + np.arange(count) / count).tolist()


def test_excluded_rows_never_enter(world: World) -> None:
    world.add(steps(12))
    expected = world.refit().version.content
    reasons = ("undrawn", "queue", "sequential", "skipped", "bulk", "trained")
    for reason in reasons:
        world.add(steps(2, first=9.0), exclusion=reason)
    again = world.refit()
    assert not again.changed
    assert again.version.content == expected
    world.add([1.5])
    made = world.refit()
    assert made.version.details["excluded"] == dict.fromkeys(reasons, 2)
    assert world.thresholds().n == 13


def test_clean_rows_take_over_at_n_min_and_policies_hold(world: World) -> None:
    world.add(steps(20), evidence="assisted")
    world.add(steps(9, first=5.0))
    first = world.refit().version
    assert (first.guarantee, first.evidence, first.details["counts"]) == (
        "assisted",
        "assisted+blind",
        {"assisted": 20, "blind": 9},
    )
    only = world.refit(policy="blind").version
    assert (only.guarantee, only.evidence, world.thresholds().n) == ("own", "blind", 9)
    world.add([5.5])
    taken = world.refit().version
    assert (taken.guarantee, taken.evidence, world.thresholds().n) == ("own", "blind", 10)
    everything = world.refit(policy="all").version
    assert (everything.guarantee, world.thresholds().n) == ("assisted", 30)


def test_texts_that_answer_for_themselves_only_do_not_make_the_evidence_own(world: World) -> None:
    world.add(steps(20), evidence="assisted")
    world.add(steps(12, first=0.0), cell="empty")
    made = world.refit().version
    assert made.details["counts"] == {"assisted": 20}
    assert made.evidence == "assisted"


def test_a_version_with_few_labels_borrows_and_says_so(world: World) -> None:
    starter = Calibration(
        calibrate(TaskRows.of([CELL] * 50, -np.linspace(1, 2, 50)), classes=["PER"], n_min=10), Guarantee.BORROWED, 0
    )
    world.add(steps(5))
    made = world.refit(starter=starter)
    assert made.version.guarantee == "none"
    [pool] = [change for change in made.changes if change.kind == "pool"]
    assert (pool.n_after, pool.guarantee, math.isinf(pool.tau_after)) == (5, "borrowed", True)
    served = calibration_of(made.version, fallback=starter)
    assert served.guarantee_for(CELL) is Guarantee.BORROWED
    assert served.guarantee_for("fr/41+") is Guarantee.NONE
    assert calibration_of(made.version).guarantee_for(CELL) is Guarantee.NONE
    world.add(steps(20))
    assert calibration_of(world.refit(starter=starter).version, fallback=starter).guarantee_for(CELL) is Guarantee.OWN


@pytest.mark.parametrize("name", ["nc1/nc2", "nc1", "nc2/raps+nc1"])
def test_a_version_says_its_whole_method_so_that_rare_classes_go_on_borrowing(world: World, name: str) -> None:
    world.add(steps(40))
    made = world.refit(method=Method(name)).version
    assert made.method == name
    own = calibration_of(made).thresholds
    assert not own.label_pool(OUTSIDE).calibrated  # no such row
    tasks = TaskRows.of([CELL] * 50, -np.linspace(1, 2, 50), rank=np.full(50, 1), cumulative=np.full(50, 0.5))
    spans = EntityRows.of(
        np.arange(50),
        [OUTSIDE] * 50,
        probability=np.full(50, 0.5),
        cumulative=np.full(50, 0.5),
        class_rank=np.full(50, 1),
    )
    for version in (made, replace(made, method=name.split("/", maxsplit=1)[0])):  # and as earlier releases kept it
        starter = calibrate(tasks, spans, classes=["PER"], method=version_method(version), n_min=10)
        assert starter.entity_method.name == own.entity_method.name
        if not own.entity_method.tuned:
            assert label_pools(own, starter)[OUTSIDE].calibrated


def test_what_the_last_refit_read_is_what_its_version_says(world: World) -> None:
    def last() -> LastFit:
        with world.store.read() as session:
            return last_fit(session, world.project.id, model_id=world.model.id)

    assert last() == LastFit()
    world.add(steps(12))
    assert (last().rows, last().revision) == (0, 0)
    began = last().at
    assert began is not None  # the clock runs from the first row
    first = world.refit().version
    assert last() == LastFit(12, first.input_revision, first.created_at)
    world.add(steps(2, first=9.0), exclusion="queue")
    assert not world.refit().changed
    assert (last().rows, last().revision) == (12, first.input_revision + 2)
    assert last().at >= first.created_at
    world.add(steps(3), evidence="assisted")  # not used, and counted all the same
    assert not world.refit().changed
    assert (last().rows, last().revision) == (15, first.input_revision + 5)
    world.add([1.5])
    second = world.refit().version
    assert last() == LastFit(16, second.input_revision, second.created_at)
    with world.store.write() as session:
        activate_version(session, first.id, reason="roll-back")
    assert last().revision == second.input_revision  # whoever went back is not overruled before new labels come
    with world.store.read() as session:
        other = last_fit(session, world.project.id, model_id=world.model.id + 1)
    assert other == LastFit()


def test_the_gap_is_kept_with_the_version(world: World) -> None:
    world.add(steps(30), evidence="assisted", rank=1.0)
    world.add(steps(20), evidence="blind", rank=2.0)
    gap = world.refit().version.details["gap"]
    assert gap["assisted"] == {"accepted": 30, "total": 30}
    assert gap["blind"] == {"accepted": 0, "total": 20}
    assert gap["gap"] == 1.0
    assert gap["detected"]
    assert not Gap(60, 60, 40, 40).detected
    assert Gap(1, 1, 0, 0).value is None


def test_assisted_sets_carry_the_measured_gap(world: World) -> None:
    world.add(steps(30), evidence="assisted", rank=1.0)
    assert "not been measured yet" in calibration_of(world.refit().version).remark
    world.add(steps(8), evidence="blind", rank=2.0)
    assert "100.0 points more often" in calibration_of(world.refit().version).remark


def test_unresolved_skips_are_shown_or_counted_as_out_of_reach(world: World) -> None:
    with world.store.write() as session:
        record_order(session, world.project.id, order=Order.UNIFORM, at=NOW - timedelta(days=1), source="webhook")
        record_order(session, world.project.id, order=Order.UNIFORM, at=NOW + timedelta(days=1), source="webhook")
    world.add(steps(12))
    world.skip(3)
    shown = world.refit().version
    skips = shown.details["skips"]
    assert (skips["unresolved"], skips["labelled"], skips["share"], skips["counted_as"]) == (3, 12, 0.2, "restate")
    assert world.thresholds().n == 12
    counted = world.refit(skipped=INFINITE).version
    assert counted.details["skips"]["counted_as"] == "infinite"
    assert world.thresholds().n == 15
    assert np.isinf(world.thresholds().cells[CELL]).sum() == 3
    assert skip_share(0, 0)["share"] is None
    with world.store.read() as session:
        waiting = list(skipped_tasks(session, world.project.id))
    assert [task.external_id for task in waiting] == ["s0", "s1", "s2"]
    assert all(task.draw.blind for task in waiting)


def test_skips_outside_the_draw_are_no_matter(world: World) -> None:
    with world.store.write() as session:
        record_order(session, world.project.id, order=Order.REVIEW, at=NOW - timedelta(days=1), source="webhook")
    world.skip(3, blind=False)
    with world.store.read() as session:
        assert list(skipped_tasks(session, world.project.id)) == []


def test_equal_probabilities_change_nothing_and_others_are_weighted(world: World) -> None:
    world.add(steps(12))
    plain = world.refit().version
    assert "effective_n" not in plain.details
    world.add(steps(12, first=3.0), weight=10.0)
    alike = world.refit().version
    assert "effective_n" not in alike.details
    assert json.loads(alike.content)["version"] == 1
    world.add(steps(12, first=3.0), weight=5.0)
    weighted = world.refit().version
    assert json.loads(weighted.content)["version"] == 2
    weights = row_weights(np.repeat([1.0, 10.0, 5.0], 12))
    effective = weights.sum() ** 2 / (weights**2).sum()
    assert weighted.details["effective_n"][CELL] == pytest.approx(effective, abs=0.1)
    assert weights.sum() == pytest.approx(36)


def test_versions_are_compared_by_pool_and_by_the_sizes_of_served_sets(world: World) -> None:
    world.add(steps(12, first=1.0))
    world.refit()
    probabilities = np.array([0.6, 0.2, 0.1, 0.05])
    ranked = pack_ranked(
        one_unit(RankedList(("PER",), tuple(np.log(probabilities).tolist()), ((),) * 4, exhausted=True))
    )
    with world.store.write() as session:
        [task] = ensure_tasks(session, world.project.id, [NewTask("77", "a")])
        record_served(
            session,
            [Served(task.id, world.model.id, None, False, CELL, CELL, "own", 30, 1.0, False, 1, 1, ranked, NOW)],
        )
    world.add(steps(24, first=2.5))
    made = world.refit()
    [pool] = [change for change in made.changes if change.kind == "pool"]
    assert (pool.n_before, pool.n_after, pool.sampled) == (12, 36, 1)
    assert pool.tau_before is not None
    assert pool.change == pytest.approx(pool.tau_after - pool.tau_before)
    assert pool.size_before == (-np.log(probabilities) <= pool.tau_before).sum() == 2
    assert pool.size_after == (-np.log(probabilities) <= pool.tau_after).sum() == 4


def test_what_happens_within_happens_with_the_version(world: World) -> None:
    world.add(steps(12))

    def refuse(_session: Session) -> None:
        raise StoreConflict("the lease is gone")

    with pytest.raises(StoreConflict, match="lease"):
        world.refit(within=refuse)
    with world.store.read() as session:
        assert active_version(session, world.project.id, model_id=world.model.id) is None


def test_a_refit_that_was_overtaken_reads_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.add(steps(12))
    first = world.refit().version
    world.add(steps(5))
    original = world.store.write
    others: list[int] = []

    def write() -> object:
        # Another process writes a version between the read and the write of this one, once.
        if not others:
            with original() as session:
                other = write_version(
                    session, world.project.id, model_id=world.model.id, alpha="0.3", method="nc1", evidence="blind",
                    guarantee="own", input_revision=0, content=first.content, thresholds=[], reason="the other process",
                )  # fmt: skip
            others.append(other.id)
        return original()

    monkeypatch.setattr(world.store, "write", write)
    made = world.refit()
    assert made.previous is not None
    assert made.previous.id == others[0]
    assert made.version.id > others[0]


def test_cells_of_excluded_rows_are_listed_apart(world: World) -> None:
    world.add(steps(3), exclusion="queue")
    with world.store.read() as session:
        assert load_cells(session, world.project.id, model_id=world.model.id) == []
        assert len(load_cells(session, world.project.id, model_id=world.model.id, excluded=True)) == 1
