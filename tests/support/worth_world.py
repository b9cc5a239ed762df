"""A project whose every label, time and list the test knows, written with the store's own functions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.calibration.order import record_order
from backend.domain.ranked import Candidate, RankedList, one_unit
from backend.domain.records import (
    AnnotationRecord,
    Draw,
    ModelRecord,
    ProjectRecord,
    SequenceScores,
    Served,
    TextSpan,
)
from backend.domain.streams import Order
from backend.domain.target import Target, TextTag
from backend.settings import Settings, load_settings
from backend.store import Store
from backend.store.batches import NewTask, ensure_tasks
from backend.store.calibration import record_scores
from backend.store.labels import labels_of, record_annotation
from backend.store.packed_lists import pack_ranked
from backend.store.projects import ensure_model, ensure_project, find_project, lookup_model
from backend.store.served import record_served
from backend.store.tables import Task

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
PER, LOC = TextSpan(0, 4, "PER"), TextSpan(5, 11, "LOC")
TEXT = "Anna Berlin"
CLASSES = ("person", "LOC")  # the config calls the model's class `person` PER
TARGET = Target(
    "label",
    TextTag("text", "text", is_url=False),
    {"person": "PER", "LOC": "LOC"},
    {"person": "person", "LOC": "LOC"},
    None,
    "",
)
BLIND, ASSISTED, LEFT = 210, 90, 60
SETTINGS: Settings = load_settings(n_min=20)


@dataclass(frozen=True)
class Made:
    """A task: its draw, what the model says best, and what a person said, if one has."""

    number: int
    blind: bool
    labelled: bool

    @property
    def language(self) -> str:
        return "de" if self.number % 4 else "en"

    @property
    def best(self) -> tuple[TextSpan, ...]:
        return (PER, LOC) if self.number % 3 else (PER,)

    @property
    def chances(self) -> tuple[float, float]:
        """Of PER at its place, and of LOC at its own."""
        return 0.9, 0.8 if self.number % 3 else 0.25

    @property
    def truth(self) -> tuple[TextSpan, ...]:
        return (() if self.number % 10 == 0 else (PER,)) + ((LOC,) if self.number % 3 or self.number % 6 == 0 else ())

    @property
    def said(self) -> tuple[TextSpan, ...]:
        """The first label: with a prelabel in view two of three errors stay."""
        return self.truth if self.blind or self.number % 30 == 0 else self.best

    @property
    def person(self) -> int:
        return 3 + self.number % 2

    @property
    def seconds(self) -> float:
        base = 30.0 if self.blind else 24.0
        return base * (2.0 if self.person == 3 else 1.0) * math.exp(0.2 * math.sin(7.0 * self.number))

    @property
    def at(self) -> datetime:
        return NOON + timedelta(minutes=self.number)

    def ranked(self) -> bytes:
        names = {"PER": "person", "LOC": "LOC"}
        best = tuple(span._replace(label=names[span.label]) for span in self.best)
        first, second = self.chances
        candidates = (Candidate(0, 4, (first, 0.02)), Candidate(5, 11, (0.03, second)))
        return pack_ranked(one_unit(RankedList(CLASSES, (-0.1,), (best,), exhausted=False, candidates=candidates)))


TASKS = [Made(i, i % 10 < 7, labelled=True) for i in range(BLIND + ASSISTED)]
TASKS += [Made(i, i % 6 == 0, labelled=False) for i in range(BLIND + ASSISTED, BLIND + ASSISTED + LEFT)]


@dataclass
class World:
    store: Store
    project: ProjectRecord
    model: ModelRecord
    tasks: dict[int, int]  # number to id


def make_world(store: Store) -> World:
    """Write the project."""
    with store.write() as session:
        project = ensure_project(session, "7.1760000000", title="Letters", label_config="<View/>")
        model = ensure_model(session, "toy", "1" * 64, classes=CLASSES)
        for at in (NOON - timedelta(hours=1), NOON + timedelta(days=9)):
            record_order(session, project.id, order=Order.UNIFORM, at=at, source="sync")
        fresh = [
            NewTask(
                str(each.number), TEXT, each.language, 2, Draw("uniform", (each.number * 0.618) % 1, 1.0, each.blind)
            )
            for each in TASKS
        ]
        kept = ensure_tasks(session, project.id, fresh)
        world = World(store, project, model, {each.number: row.id for each, row in zip(TASKS, kept, strict=True)})
        record_served(session, [_served(world, each) for each in TASKS])
        for each in TASKS:
            if each.labelled:
                submit(session, world, each)
    return world


def open_world(store: Store) -> World:
    """Return the project that was written into a database before."""
    with store.read() as session:
        project, model = find_project(session, "7.1760000000"), lookup_model(session, "toy", "1" * 64)
        rows = session.execute(sa.select(Task.external_id, Task.id)).all()
    assert project is not None
    assert model is not None
    return World(store, project, model, {int(row.external_id): row.id for row in rows})


def submit(
    session: Session, world: World, each: Made, *, spans: tuple[TextSpan, ...] | None = None, later: float = 0.0
) -> None:
    """Label a task; `later` says after how many minutes this was edited, with what it then took."""
    task = world.tasks[each.number]
    annotation = AnnotationRecord(
        1000 + each.number,
        each.at + timedelta(minutes=later),
        each.said if spans is None else spans,
        created_at=each.at,
        lead_time=each.seconds + 600.0 * later,
        completed_by=each.person,
    )
    changes = record_annotation(session, task, annotation)
    if changes:
        record_scores(
            session,
            world.project.id,
            model_id=world.model.id,
            task_id=task,
            label_revision=labels_of(session, [task])[task].revision,
            stratum="de/1-10",
            evidence="blind" if each.blind else "assisted",
            scores=SequenceScores(0.5, 1.0, 0.6),
        )


def _served(world: World, each: Made) -> Served:
    return Served(
        world.tasks[each.number],
        world.model.id,
        None,
        each.blind,
        "de/1-10",
        "de/*",
        "own",
        200,
        2.5,
        False,
        2,
        2,
        each.ranked(),
        NOON - timedelta(minutes=5),
        alpha="0.1",
        flags=each.number % 3,
        doubt=0.2,
    )
