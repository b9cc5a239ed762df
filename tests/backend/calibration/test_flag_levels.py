"""Levels of flags in refits on both databases: which rows decide, and when a version is new (METHODS 11.4, 11.5)."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import numpy as np
import pytest
import sqlalchemy as sa

from backend.calibration.evidence import row_weights
from backend.calibration.refit import Refit, refit
from backend.calibration.schedule import follows_other_flags, queue_due_refit
from backend.domain.flag_rule import RiskRule
from backend.domain.guarantee import Guarantee
from backend.domain.records import AnnotationRecord, Draw, ErrorRow, ModelRecord, ProjectRecord, SequenceScores
from backend.jobs.kinds import Kind
from backend.prediction.calibration import calibration_of
from backend.settings import load_settings
from backend.store import Store
from backend.store.batches import NewTask, ensure_tasks
from backend.store.calibration import record_scores
from backend.store.jobs import list_jobs
from backend.store.labels import record_annotation
from backend.store.projects import ensure_model, ensure_project
from backend.store.tables import Job
from backend.store.thresholds import activate_version, active_version
from backend.tagger.identity import ModelHeader
from conformal.risk import ErrorRows, RiskLevels, TaskErrors, fit_levels
from conformal.strata import EMPTY, SEEN

NOW = datetime.now(UTC)
RULE = RiskRule("0.1")
N_MIN = 12
MANY = 24
EN, DE = "en/1-10", "de/11-20"


def some_errors(count: int, *, seed: int = 0) -> list[ErrorRow]:
    """Tasks of two entities, of which one in four is missing, at a level anywhere."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        missing = tuple(rng.random(int(rng.random() < 0.4)).tolist())
        false = tuple(rng.random(int(rng.random() < 0.1)).tolist())
        made.append(ErrorRow(2, 2 - len(missing) + len(false), missing=missing, false=false))
    return made


class World:
    """A project, a model, and labelled tasks with the errors of their best labelings."""

    def __init__(self, store: Store) -> None:
        self.store, self.count = store, 0
        self.known: dict[int, tuple[ErrorRow, str, float]] = {}
        with store.write() as session:
            self.project: ProjectRecord = ensure_project(session, "1.1")
            self.model: ModelRecord = ensure_model(session, "m", "ab", classes=["PER"])

    def add(
        self,
        errors: list[ErrorRow],
        *,
        evidence: str = "blind",
        cell: str = EN,
        exclusion: str | None = None,
        weights: list[float] | None = None,
        model: ModelRecord | None = None,
    ) -> None:
        draw = Draw("uniform", 0.5, 1.0, blind=evidence != "assisted")
        with self.store.write() as session:
            new = [NewTask(str(self.count + i), "a", "en", 1, draw) for i in range(len(errors))]
            tasks = ensure_tasks(session, self.project.id, new)
            for i, (task, mine) in enumerate(zip(tasks, errors, strict=True)):
                self.count += 1
                self.known[task.id] = (mine, cell.split("/", maxsplit=1)[0], 1.0 if weights is None else weights[i])
                label = record_annotation(session, task.id, AnnotationRecord(self.count, NOW, ()))[0].label
                assert label is not None
                record_scores(
                    session, self.project.id, model_id=(model or self.model).id, task_id=task.id,
                    label_revision=label.revision, stratum=cell, evidence=evidence,
                    scores=SequenceScores(1.0 + i / 50, 1.0, 0.5), exclusion=exclusion,
                    weight=1.0 if weights is None else weights[i], errors=mine,
                )  # fmt: skip

    def refit(self, flags: RiskRule | None = RULE, **options: object) -> Refit:
        given = {"alpha": "0.2", "n_min": N_MIN, "model": self.model} | options
        return refit(self.store, self.project, flags=flags, **given)  # type: ignore[arg-type]

    def levels(self, flags: RiskRule | None = RULE, **options: object) -> RiskLevels:
        return RiskLevels.from_dict(self.refit(flags, **options).version.details["risk"])

    def is_due(self, **settings: object) -> bool:
        """Ask whether a refit is due, and put its job away again."""
        header = ModelHeader(self.model.name, self.model.hash, tuple(self.model.classes))
        chosen = load_settings(refit_every_minutes=10_000, **settings)  # type: ignore[arg-type]
        with self.store.write() as session:
            return queue_due_refit(session, self.project, header=header, settings=chosen)

    def reasons(self) -> list[str]:
        """Take the waiting refits out of the way; return their reasons."""
        with self.store.write() as session:
            jobs = [job for job in list_jobs(session, limit=50) if job.kind == Kind.REFIT]
            session.execute(sa.delete(Job))
        return [str(job.payload["reason"]) for job in jobs]


@pytest.fixture
def world(store: Store) -> World:
    return World(store)


def expected(world: World, *, weighted: bool = False, rule: RiskRule = RULE) -> RiskLevels:
    """What the library makes of the rows, in the order of the tasks."""
    held = [each for _, each in sorted(world.known.items())]
    tasks = [TaskErrors(row.true_spans, row.best_spans, row.missing, row.false) for row, _, _ in held]
    weights = row_weights(np.array([weight for _, _, weight in held])) if weighted else None
    rows, languages = ErrorRows.of(tasks, weights), [language for _, language, _ in held]
    return fit_levels(rows, languages, max_error=rule.max_error, sure=rule.sure, n_min=N_MIN)


def test_levels_are_those_of_the_library_on_the_same_rows(world: World) -> None:
    world.add(some_errors(MANY))
    world.add(some_errors(6, seed=1), cell=DE, evidence="file")
    found = world.levels()
    assert found == expected(world)
    assert [pool.name for pool in found.pools] == ["en", "others"]
    assert 0 < found.pool("en").level < 1
    assert [pool.n for pool in found.pools] == [MANY, 6]
    sure = RiskRule("0.4", sure=True)
    assert world.levels(sure) == expected(world, rule=sure)


def test_rows_that_understate_what_is_left_have_no_say(world: World) -> None:
    """Assisted labels agree with the prelabel too often; texts that trained the model have too few errors."""
    world.add(some_errors(MANY))
    before = world.levels()
    right = [ErrorRow(2, 2)] * 6
    world.add(right, evidence="assisted")
    world.add(right, exclusion="queue")
    for cell in (SEEN, EMPTY):
        world.add(right, cell=cell)
    assert world.levels(policy="all") == before
    world.add(right)  # blind ones have one
    after = world.levels(policy="all")
    assert after.pool("en").level > before.pool("en").level
    assert after.pool("en").n == MANY + 6


def test_tasks_without_known_errors_are_left_out(world: World) -> None:
    world.add(some_errors(MANY))
    before = world.levels()
    with world.store.write() as session:
        session.execute(sa.text("UPDATE calibration_scores SET true_spans = NULL WHERE id > :last"), {"last": MANY - 1})
    assert world.levels().pool("en").n == before.pool("en").n - 1


def test_weights_of_review_order_are_used(world: World) -> None:
    errors = some_errors(MANY)
    world.add(errors, weights=[4.0 if each.missing else 2.0 for each in errors])
    found = world.levels(RiskRule("0.2"))
    rule = RiskRule("0.2")
    assert found == expected(world, weighted=True, rule=rule)
    assert found.pool("en").level < expected(world, rule=rule).pool("en").level


def test_equal_weights_are_none(world: World) -> None:
    world.add(some_errors(MANY), weights=[7.0] * MANY)
    assert world.levels() == expected(world)


def test_levels_are_kept_with_the_version_and_served(world: World) -> None:
    world.add(some_errors(MANY))
    made = world.refit().version
    with world.store.read() as session:
        stored = active_version(session, world.project.id, model_id=world.model.id)
    assert stored is not None
    assert stored.details["risk"] == made.details["risk"]
    flags = calibration_of(stored).flags_for("en")
    assert flags is not None
    assert (flags.guarantee, flags.max_error, flags.n) == (Guarantee.OWN, "0.1", MANY)
    assert flags.level == RiskLevels.from_dict(made.details["risk"]).pool("en").level
    with pytest.raises(Exception, match="never changed"), world.store.write() as session:
        session.execute(sa.text("UPDATE threshold_versions SET details = '{}'"))
    without = world.refit(None).version
    assert "risk" not in without.details
    assert calibration_of(without).flags_for("en") is None


def test_same_rows_and_rule_make_no_new_version(world: World) -> None:
    world.add(some_errors(MANY))
    first = world.refit()
    assert first.changed
    assert not world.refit().changed
    for rule in (RiskRule("0.05"), RiskRule("0.05", sure=True), None, RULE):
        made = world.refit(rule)
        assert made.changed, rule
        assert made.version.content == first.version.content  # thresholds themselves do not depend on it
        assert not world.refit(rule).changed
    world.add([ErrorRow(1, 1)], evidence="assisted", exclusion="queue")
    assert not world.refit().changed


def test_a_level_that_flags_nothing_survives_the_database(world: World) -> None:
    world.add([ErrorRow(1, 1)] * 14)
    assert world.levels().pool("en").level == math.inf
    assert not world.refit().changed


def test_few_labels_give_no_level_and_say_how_many(world: World) -> None:
    world.add(some_errors(5))
    pool = world.levels().pool("en")
    assert (pool.calibrated, pool.level, pool.n) == (False, 0.0, 5)
    flags = calibration_of(world.refit().version).flags_for("en")
    assert flags is not None
    assert (flags.guarantee, flags.n) == (Guarantee.NONE, 5)


def test_another_rule_is_a_reason_to_refit(world: World) -> None:
    world.add(some_errors(MANY))
    world.refit(RiskRule("0.1"))
    assert not world.is_due(max_error="0.1")
    for settings in ({"max_error": "0.05"}, {"max_error": "0.1", "max_error_sure": True}, {"flags": "sets"}):
        assert world.is_due(**settings), settings
        assert not world.is_due(**settings)  # one waits
        assert world.reasons() == ["flags follow another rule"]
    world.refit(None)
    assert not world.is_due(flags="sets", max_error="0.2")
    assert world.is_due(max_error="0.1")
    assert world.reasons() == ["flags follow another rule"]
    assert not world.is_due(flags="sets")
    assert world.reasons() == []


def test_before_the_first_version_no_rule_is_followed(world: World) -> None:
    assert not world.is_due()
    with world.store.read() as session:
        assert not follows_other_flags(session, world.project.id, model_id=world.model.id, rule=RULE)


def test_going_back_to_an_earlier_version_with_its_rule_is_no_reason_to_refit_for_ever(world: World) -> None:
    world.add(some_errors(MANY))
    first = world.refit(RiskRule("0.1"))
    world.refit(RiskRule("0.05"))
    with world.store.write() as session:
        activate_version(session, first.version.id, reason="back")
    assert not world.refit(RiskRule("0.1")).changed
    assert not world.is_due(max_error="0.1")  # what serves follows the rule already
    assert not world.is_due(max_error="0.05")  # whoever went back is not overruled before new labels come
    assert world.is_due(max_error="0.02")
    assert world.reasons() == ["flags follow another rule"]


def test_each_model_has_levels_of_its_own_rows(world: World) -> None:
    world.add(some_errors(MANY))
    before = world.levels()
    with world.store.write() as session:
        other = ensure_model(session, "other", "cd", classes=["PER"])
    world.add([ErrorRow(2, 2)] * 14, model=other)
    found = world.levels(model=other)
    assert (found.pool("en").n, found.pool("en").level) == (14, math.inf)
    assert world.levels() == before
