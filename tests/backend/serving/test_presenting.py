"""Draws are made before a task is shown, from salt and id alone, and hold whatever happens afterwards."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from scipy import stats

from backend.calibration.order import record_sampling
from backend.domain.priority import priority_of
from backend.domain.records import AnnotationRecord, Draw
from backend.domain.streams import Order, draw_task, uniforms
from backend.domain.text import text_hash
from backend.errors import StoreUnavailable
from backend.labelstudio.payloads import read_predict
from backend.models.gate import FairGate
from backend.review.blind_priorities import PrioritySample, blind_priority
from backend.serving.blindness import BlindPriorities
from backend.serving.measures import Measures
from backend.serving.presenting import DrawnTasks, Met, Present, Presentation
from backend.serving.recording import Recorder, ServedBatch, ServedTask
from backend.serving.service import Service
from backend.settings import Settings, load_settings
from backend.store import Store, open_store
from backend.store.labels import record_annotation
from backend.store.projects import ensure_project, find_project, find_task
from backend.store.served import served_before
from backend.tagger.identity import ModelHeader
from tests.backend.serving.test_recording import MODEL, answer
from tests.support import payload_shapes as shapes
from tests.support.service import MakeApp

PROJECT = "5.6"
NOON = datetime(2026, 11, 2, 12, tzinfo=UTC)


@pytest.fixture
def url(tmp_path: Path) -> str:
    open_store(f"sqlite:///{tmp_path / 'store.db'}").close()
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store(url, wait=0.2) as opened:
        yield opened


def drawn(store: Store, **changes: Any) -> DrawnTasks:
    """A process's view of the streams that asks the database every time."""
    chosen = load_settings(**({"audit_share": 0.3, "blind": 0.2} | changes))
    return DrawnTasks(chosen, store, store, writing=FairGate(1), poll=0.0)


def met(*numbers: int, text: str = "Bob") -> list[Met]:
    return [Met(str(number), text_hash(f"{text} {number}")) for number in numbers]


def record(store: Store, tasks: Sequence[Met], shown: Sequence[Presentation], text: str = "Bob") -> tuple[bool, ...]:
    served = tuple(
        ServedTask(each.task, f"{text} {each.task}", None, how.draw, answer())
        for each, how in zip(tasks, shown, strict=True)
    )
    return Recorder(store, Measures()).record(ServedBatch.of(PROJECT, None, MODEL, served))


def say(store: Store, sampling: str, minutes: int = 0) -> None:
    with store.write() as session:
        project = ensure_project(session, PROJECT)
        record_sampling(session, project.id, sampling=sampling, at=NOON + timedelta(minutes=minutes), source="webhook")


class TestDraws:
    def test_they_come_from_salt_and_id_alone_and_every_process_draws_the_same(self, store: Store) -> None:
        say(store, "Uniform sampling")
        one, other = drawn(store), drawn(store)
        tasks = met(*range(300))
        shown = one(PROJECT, tasks)
        assert [each.draw for each in other(PROJECT, met(*range(300), text="another text"))] == [
            each.draw for each in shown
        ]
        streams = one.streams(PROJECT)
        assert streams is not None
        for each, how in zip(tasks, shown, strict=True):
            assert how.draw == draw_task(
                streams.salt, PROJECT, each.task, order=Order.UNIFORM, audit_share=0.3, blind=0.2
            )
            assert how.quantile == uniforms(streams.salt, PROJECT, each.task).v
        assert stats.binomtest(sum(each.blind for each in shown), 300, 0.2).pvalue > 1e-4
        assert {each.blind for each in shown} == {True, False}

    def test_review_order_makes_audit_tasks_blind_and_no_other(self, store: Store) -> None:
        say(store, "Uncertainty sampling")
        shown = drawn(store)(PROJECT, met(*range(300)))
        assert {(each.draw.stream, each.blind) for each in shown if each.draw} == {("audit", True), ("queue", False)}
        assert stats.binomtest(sum(each.blind for each in shown), 300, 0.3).pvalue > 1e-4

    def test_what_was_drawn_at_first_show_is_kept_whatever_changes(self, store: Store) -> None:
        say(store, "Uniform sampling")
        tasks = met(*range(60))
        first = drawn(store)(PROJECT, tasks)
        record(store, tasks, first)
        say(store, "Uncertainty sampling", minutes=5)
        later = drawn(store, audit_share=0.9, blind=0.9)
        assert [each.draw for each in later(PROJECT, tasks)] == [each.draw for each in first]
        assert all(each.kept for each in later(PROJECT, tasks))
        # An edited text is still the task that people have met; a new task is drawn under the new order.
        assert [each.draw for each in later(PROJECT, met(*range(60), text="edited"))] == [each.draw for each in first]
        new = later(PROJECT, met(*range(60, 120)))
        assert {each.draw.stream for each in new if each.draw} == {"audit", "queue"}

    def test_the_first_kept_draw_wins_over_that_of_another_process(self, store: Store) -> None:
        tasks = met(1, 2)
        blind, open_ = Draw("audit", 0.5, 0.1, blind=True), Draw("queue", 0.5, 0.9, blind=False)
        assert record(store, tasks, [Presentation(blind), Presentation(open_)]) == (True, False)
        assert record(store, tasks, [Presentation(open_), Presentation(blind)]) == (True, False)
        with store.read() as session:
            project = find_project(session, PROJECT)
            assert project is not None
            for name, shadow in (("1", True), ("2", False)):
                task = find_task(session, project.id, external_id=name)
                assert task is not None
                served = served_before(session, task.id, at=datetime.now(UTC) + timedelta(hours=1))
                assert served is not None
                assert served.shadow is shadow

    def test_a_task_shown_without_a_draw_stays_undrawn(self, store: Store) -> None:
        tasks = met(1)
        record(store, tasks, [Presentation()])
        shown = drawn(store, blind=1.0)(PROJECT, [*tasks, *met(2)])
        assert [each.draw is None for each in shown] == [True, False]
        assert not shown[0].blind

    def test_nothing_is_drawn_for_the_local_project_or_a_task_without_id(self, store: Store) -> None:
        how = drawn(store, blind=1.0)
        assert how("local", met(1)) == Present()("local", met(1)) == [Presentation()]
        assert how(PROJECT, [Met("", b"x")]) == [Presentation()]

    def test_a_change_of_order_is_said_once(self, store: Store, caplog: pytest.LogCaptureFixture) -> None:
        how = drawn(store)
        say(store, "Uniform sampling")
        how(PROJECT, met(1))
        with caplog.at_level(logging.WARNING):
            say(store, "Uncertainty sampling", minutes=3)
            for number in range(4):
                how(PROJECT, met(number))
        (record,) = [record for record in caplog.records if "has changed" in record.message]
        assert (record.before, record.order) == ("uniform", "review")  # type: ignore[attr-defined]
        assert "only blind audit tasks calibrate" in record.meaning  # type: ignore[attr-defined]

    def test_a_database_that_is_away_shows_the_tasks_of_a_new_project_undrawn(self, store: Store, url: str) -> None:
        how = drawn(store, blind=1.0)
        how(PROJECT, met(1))
        other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert how("7.8", met(1)) == [Presentation()]  # its salt cannot be written
        assert how(PROJECT, met(2))[0].blind
        other.execute("ROLLBACK")
        other.close()

    def test_a_failing_read_of_kept_draws_draws_by_hash(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        how = drawn(store, blind=0.5)
        expected = [each.draw for each in drawn(store, blind=0.5)(PROJECT, met(*range(20)))]
        how(PROJECT, met(99))

        def fail(*_: Any) -> None:
            raise StoreUnavailable("gone")

        monkeypatch.setattr("backend.serving.presenting.load_draws", fail)
        assert [each.draw for each in how(PROJECT, met(*range(20)))] == expected


class TestBlindScores:
    def test_a_random_place_gives_every_score_equally_often(self) -> None:
        scores = sorted([0.2, 0.9, 0.4, 0.7])
        found = [blind_priority(i / 1000, scores) for i in range(1000)]
        assert [found.count(score) for score in scores] == [250] * 4

    def test_the_sample_forgets_the_oldest(self) -> None:
        sample = PrioritySample(size=3)
        sample.add([0.5, 0.1, 0.5, 0.9, 0.3])
        assert len(sample) == 3
        assert [sample.at(place) for place in (0.0, 0.4, 0.99)] == [0.3, 0.5, 0.9]

    def test_it_is_seeded_from_what_was_served_and_blind_tasks_have_no_part(self, store: Store) -> None:
        shown, blind = Draw("uniform", 0.1, 1.0, blind=False), Draw("uniform", 0.2, 1.0, blind=True)
        record(store, met(1, 2), [Presentation(shown), Presentation(blind)])
        scores = BlindPriorities(store)
        assert scores.at(PROJECT, MODEL, 0.5) == priority_of(0.1, first=False)  # the value of what was served
        assert len(scores._sample(PROJECT, MODEL, 0)) == 1
        # Under another model, or in another project, there is none yet: the place itself stands in.
        assert scores.at(PROJECT, ModelHeader("m", "cd" * 32, ("PER",)), 0.25) == 0.25
        assert scores.at("9.9", MODEL, 0.75) == 0.75


class TestService:
    @pytest.fixture
    def blind_app(self, make_app: MakeApp) -> Flask:
        return make_app(streams=True, blind=0.4, audit_share=0.4)

    def test_what_annotators_see_and_what_is_kept(
        self,
        blind_app: Flask,
        settings: Settings,
    ) -> None:
        service: Service = blind_app.extensions["surespan"]
        texts = [f"{shapes.TEXTS[i % 3]} {i}" for i in range(40)]
        tasks = [shapes.task(i, text) for i, text in enumerate(texts)]
        answer = blind_app.test_client().post("/predict", json=shapes.predict(tasks), buffered=True).json["results"]
        streams = service.present.streams(shapes.PROJECT)  # type: ignore[attr-defined]
        expected = [
            draw_task(streams.salt, shapes.PROJECT, str(i), order=None, audit_share=0.4, blind=0.4) for i in range(40)
        ]
        shown_scores = []
        for entry, draw in zip(answer, expected, strict=True):
            if draw.blind:
                assert [each["result"] for each in entry] == [[]]
                assert 0.0 <= entry[0]["score"] <= 1.0
            else:
                assert entry[-1]["result"]
                shown_scores.append(entry[-1]["score"])
        blind_priorities = [entry[0]["score"] for entry, draw in zip(answer, expected, strict=True) if draw.blind]
        assert blind_priorities
        # Every score of a blind task is that of some other task that is shown.
        assert set(blind_priorities) <= set(shown_scores)
        with service.reads.read() as session:
            project = find_project(session, shapes.PROJECT)
            assert project is not None
            for i, draw in enumerate(expected):
                task = find_task(session, project.id, external_id=str(i))
                assert task is not None
                assert task.draw == draw
                served = served_before(session, task.id, at=datetime.now(UTC) + timedelta(hours=1))
                assert served is not None
                assert served.shadow is draw.blind
        sent = {str(i): entry[-1]["score"] for i, entry in enumerate(answer)}
        queue = blind_app.test_client().get(f"/api/v1/queue?project={shapes.PROJECT}&limit=500").json["tasks"]
        assert {each["task"]: each["blind"] for each in queue} == {str(i): d.blind for i, d in enumerate(expected)}
        assert [sent[each["task"]] for each in queue] == sorted(sent.values())  # the queue is Label Studio's order
        self.nothing_leaks_in_interactive_mode(blind_app, texts, expected)
        self.a_skipped_task_is_blind_again(blind_app, service, texts, expected, settings)

    def nothing_leaks_in_interactive_mode(self, app: Flask, texts: list[str], draws: list[Draw]) -> None:
        seen = {}
        for i in range(12):
            regions = [shapes.region(0, texts[i].index(" "), texts[i], "LOC", origin="manual")]
            body = shapes.predict([shapes.task(i, texts[i])], context={"result": regions})
            (entry,) = app.test_client().post("/predict", json=body, buffered=True).json["results"]
            seen.setdefault(draws[i].blind, []).append(entry)
        assert all(entry["result"] == [] and "alternatives" not in entry for entry in seen[True])
        assert any(entry["alternatives"] for entry in seen[False])
        # Also where nothing was served before: the draw is kept first.
        text = "Anna Berg wohnt in Wien."
        for number in range(100, 112):
            body = shapes.predict([shapes.task(number, text)], context={"result": []})
            app.test_client().post("/predict", json=body, buffered=True)
        service: Service = app.extensions["surespan"]
        with service.reads.read() as session:
            project = find_project(session, shapes.PROJECT)
            assert project is not None
            for number in range(100, 112):
                task = find_task(session, project.id, external_id=str(number))
                assert task is not None
                assert task.draw is not None

    def a_skipped_task_is_blind_again(
        self, app: Flask, service: Service, texts: list[str], draws: list[Draw], chosen: Settings
    ) -> None:
        blind = next(i for i, draw in enumerate(draws) if draw.blind)
        with Store(chosen.database_url) as store, store.write() as session:
            project = ensure_project(session, shapes.PROJECT)
            task = find_task(session, project.id, external_id=str(blind))
            assert task is not None
            record_annotation(session, task.id, AnnotationRecord(1, NOON, (), was_cancelled=True))
            record_sampling(session, project.id, sampling="Uncertainty sampling", at=NOON, source="webhook")
        fresh = Service(service.settings.model_copy(update={"blind": 0.0, "audit_share": 0.0}))
        fresh.start()
        try:
            body = shapes.predict([shapes.task(blind, texts[blind])])
            entries = b"".join(fresh.predict(read_predict(body)))
            assert b'"result":[]' in entries
        finally:
            fresh.close()
        project_info = app.test_client().get("/api/v1/projects").json["projects"][0]
        assert project_info["order"] == "review"
        assert project_info["since"].startswith("2026-11-02T12:00:00")
        assert project_info["evidence"].startswith("audit only since ")
