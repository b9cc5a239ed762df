"""Label Studio's routes, with requests of the shapes it sends."""

from __future__ import annotations

import json
import math
import sqlite3
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from label_studio_sdk.label_interface import LabelInterface

from backend.app import service_of
from backend.domain.guarantee import Guarantee
from backend.domain.priority import value_of
from backend.domain.records import Draw, Served, TextSpan
from backend.serving import chunks
from backend.serving.presenting import Met, Present, Presentation
from backend.serving.service import Service
from backend.settings import Settings
from backend.store import Store
from backend.store.events import list_events
from backend.store.jobs import list_jobs
from backend.store.packed_lists import unpack_ranked
from backend.store.projects import ensure_model, ensure_project, find_project, find_task, set_project_alpha
from backend.store.served import served_before
from backend.store.thresholds import write_version
from backend.tagger.readers import read_labelled
from tests.support import payload_shapes as shapes
from tests.support.data import benchmark_data
from tests.support.paths import SAMPLE
from tests.support.service import MakeApp
from tests.support.waiting import WAIT


def post(app: Flask, path: str, body: Any) -> Any:
    return app.test_client().post(path, json=body, buffered=True)


def results(app: Flask, body: Any) -> list[Any]:
    answer = post(app, "/predict", body)
    assert answer.status_code == 200, answer.json
    found = answer.json["results"]
    assert len(found) == len(body["tasks"])
    return list(found)


def served(service: Service, task: str, project: str = shapes.PROJECT) -> Served | None:
    with service.reads.read() as session:
        row = find_project(session, project)
        assert row is not None
        found = find_task(session, row.id, external_id=task)
        return None if found is None else served_before(session, found.id, at=datetime.now(UTC) + timedelta(hours=1))


class TestPredictions:
    def test_one_valid_entry_per_task_in_order_with_rank_one_last(self, app: Flask) -> None:
        tasks = [shapes.task(i, text) for i, text in enumerate(shapes.TEXTS, start=1)]
        witness = LabelInterface(shapes.CONFIG)
        version = post(app, "/setup", shapes.setup()).json["model_version"]
        several = 0
        for entry, text in zip(results(app, shapes.predict(tasks)), shapes.TEXTS, strict=True):
            names = [each["model_version"] for each in entry]
            assert names == [f"{version} #{rank}" for rank in range(len(entry), 1, -1)] + [version]
            scores = [each["score"] for each in entry]
            assert scores == sorted(scores)
            several += len(entry) > 1
            shown = [json.dumps([r["value"] for r in each["result"] if r["from_name"] == "label"]) for each in entry]
            assert len(set(shown)) == len(shown)  # ranks never repeat
            for prediction in entry:
                assert witness.validate_prediction(prediction, return_errors=True) == []
                for result in prediction["result"]:
                    value = result["value"]
                    assert value["text"] == text[value["start"] : value["end"]]
        assert several

    def test_what_is_said_is_what_the_predictor_says(self, app: Flask, service: Service) -> None:
        view = service.views.view(shapes.PROJECT, shapes.CONFIG)
        assert view.predictor.tagger.space.classes == ("LOC", "PER")
        for number, text in enumerate(shapes.TEXTS):
            made = view.predictor.predict([text])[0].as_dict()
            entry = results(app, shapes.predict([shapes.task(number, text)]))[0]
            assert len(entry) == len(made["labelings"])
            for prediction, labeling in zip(reversed(entry), made["labelings"], strict=True):
                ratio = labeling["probability"] / made["labelings"][0]["probability"]
                assert prediction["score"] == pytest.approx(entry[-1]["score"] * ratio)
                spans = [
                    (r["value"]["start"], r["value"]["end"], {"Person": "PER"}.get(*r["value"]["labels"] * 2))
                    for r in prediction["result"]
                    if r["from_name"] == "label"
                ]
                assert spans == [(s["start"], s["end"], s["label"]) for s in labeling["spans"]]
            flagged = {(s["start"], s["end"]) for s in made["spans"] if s["flagged"]}
            flags = [r["value"] for r in entry[-1]["result"] if r["from_name"] == "flag"]
            assert {(value["start"], value["end"]) for value in flags} == flagged

    def test_an_odd_task_gets_an_empty_prediction_and_its_neighbours_theirs(
        self, app: Flask, caplog: pytest.LogCaptureFixture
    ) -> None:
        odd = [
            shapes.task(1, 5),
            shapes.task(2, None),
            {"id": 3, "data": {"body": "x"}},
            "no task at all",
            shapes.task(4, "https://files.example/a.txt"),
            shapes.task(5, "x" * 1_000_001),
            {"id": 6},
        ]
        good = shapes.task(7, shapes.TEXTS[0])
        found = results(app, shapes.predict([good, *odd, good]))
        assert found[0] == found[-1] != []
        assert found[0][-1]["result"]
        for entry in found[1:-1]:
            assert [each["result"] for each in entry] == [[]]
        reasons = [record.reason for record in caplog.records if record.message == "a task has no prediction"]  # type: ignore[attr-defined]
        assert len(reasons) == len(odd)
        assert len(set(reasons)) == 6  # two of them lack the key
        assert "files.example" not in caplog.text

    def test_a_failing_prediction_fails_alone(
        self, app: Flask, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        made = chunks.answer_of

        def fail_on_wien(prediction: Any) -> Any:
            if "Wien" in prediction.text:
                raise ZeroDivisionError(prediction.text)
            return made(prediction)

        monkeypatch.setattr(chunks, "answer_of", fail_on_wien)
        found = results(app, shapes.predict([shapes.task(i, text) for i, text in enumerate(shapes.TEXTS)]))
        assert found[0] == [{"model_version": found[0][0]["model_version"], "score": 0.0, "result": []}]
        assert all(entry[-1]["score"] > 0 for entry in found[1:])
        record = next(r for r in caplog.records if getattr(r, "error", None) == "ZeroDivisionError")
        assert record.stack  # type: ignore[attr-defined]
        assert "Wien" not in caplog.text

    def test_the_same_request_twice_costs_once(self, app: Flask, service: Service) -> None:
        body = shapes.predict([shapes.task(i, text) for i, text in enumerate(shapes.TEXTS)])
        first = results(app, body)
        counted = service.measures.registry.get_sample_value
        assert counted("surespan_predicted_tasks_total", {"source": "model"}) == len(shapes.TEXTS)
        assert results(app, body) == first
        assert counted("surespan_predicted_tasks_total", {"source": "model"}) == len(shapes.TEXTS)
        assert counted("surespan_predicted_tasks_total", {"source": "cache"}) == len(shapes.TEXTS)
        assert counted("surespan_served_sets_total", {"outcome": "recorded"}) == len(shapes.TEXTS)
        # Another project, or another label config, is another question.
        results(app, body | {"project": "32.1"})
        results(app, body | {"label_config": shapes.PLAIN_CONFIG})
        assert counted("surespan_predicted_tasks_total", {"source": "model"}) == 3 * len(shapes.TEXTS)

    def test_equal_texts_of_two_tasks_are_computed_once_and_have_ids_of_their_own(
        self, app: Flask, service: Service
    ) -> None:
        one, two = results(app, shapes.predict([shapes.task(1, shapes.TEXTS[0]), shapes.task(2, shapes.TEXTS[0])]))
        assert [p["score"] for p in one] == [p["score"] for p in two]
        assert not {r["id"] for r in one[-1]["result"]} & {r["id"] for r in two[-1]["result"]}
        counted = service.measures.registry.get_sample_value
        assert counted("surespan_predicted_tasks_total", {"source": "model"}) == 1

    def test_concurrent_requests_for_one_text_share_the_work(self, app: Flask, service: Service) -> None:
        results(app, shapes.predict([shapes.task(0, "ready")]))
        body = shapes.predict([shapes.task(i, f"{shapes.TEXTS[1]} {i % 4}") for i in range(40)])
        answers: list[Any] = []
        threads = [threading.Thread(target=lambda: answers.append(results(app, body))) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(answers) == 6
        assert all(each == answers[0] for each in answers)
        assert service.measures.registry.get_sample_value("surespan_predicted_tasks_total", {"source": "model"}) == 5

    def test_a_large_batch_is_cut_into_chunks(self, make_app: MakeApp) -> None:
        app = make_app()
        texts = [f"{shapes.TEXTS[i % 4]} {i}" for i in range(100)]
        found = results(app, shapes.predict([shapes.task(i, text) for i, text in enumerate(texts)]))
        alone = make_app(cache_tasks=0)
        for i in (0, 31, 32, 33, 64, 99):
            entry = results(alone, shapes.predict([shapes.task(i, texts[i])]))[0]
            assert [p["result"] == q["result"] for p, q in zip(entry, found[i], strict=True)] == [True] * len(entry)
            assert [p["score"] for p in entry] == pytest.approx([p["score"] for p in found[i]], rel=1e-4)

    def test_nothing_to_predict_is_answered_too(self, app: Flask) -> None:
        assert results(app, shapes.predict([])) == []

    def test_the_config_of_setup_is_used_where_a_request_has_none(self, app: Flask) -> None:
        body = {"project": shapes.PROJECT, "tasks": [{"id": 1, "data": {"text": shapes.TEXTS[0]}}]}
        refused = post(app, "/predict", body)
        assert refused.status_code == 422
        assert refused.json["hint"] == "send it, or call /setup"
        post(app, "/setup", shapes.setup())
        assert results(app, body)[0][-1]["result"]

    def test_merged_classes_make_one_label(self, app: Flask) -> None:
        merged = shapes.PLAIN_CONFIG.replace(
            '<Label value="PER"/><Label value="ORG"/>', '<Label value="Name" predicted_values="PER,ORG,LOC,MISC"/>'
        )
        entry = results(app, shapes.predict([shapes.task(1, shapes.TEXTS[0])], config=merged))[0]
        found = [r["value"] for prediction in entry for r in prediction["result"]]
        assert found
        assert {label for value in found for label in value["labels"]} == {"Name"}
        shown = [json.dumps([r["value"] for r in prediction["result"]]) for prediction in entry]
        assert len(set(shown)) == len(shown)

    def test_without_a_flag_control_there_are_no_flags_and_it_is_said_once(
        self, app: Flask, caplog: pytest.LogCaptureFixture
    ) -> None:
        for text in shapes.TEXTS[:3]:
            entry = results(app, shapes.predict([shapes.task(1, text)], config=shapes.PLAIN_CONFIG))[0]
            assert {r["from_name"] for p in entry for r in p["result"]} <= {"label"}
        assert sum("has no control for doubtful spans" in record.message for record in caplog.records) == 1


class TestRecord:
    def test_what_was_served_is_stored(self, app: Flask, service: Service) -> None:
        entry = results(app, shapes.predict([shapes.task(8, shapes.TEXTS[0])]))[0]
        kept = served(service, "8")
        assert kept is not None
        assert (kept.version_id, kept.shadow, kept.shown) == (None, False, len(entry))
        ranked = unpack_ranked(kept.ranked).units[0].ranked
        shown = [r["value"] for r in entry[-1]["result"] if r["from_name"] == "label"]
        best = [(span.start, span.end) for span in ranked.labelings[0]]
        assert best == [(value["start"], value["end"]) for value in shown] != []
        assert len(ranked.labelings) == 16
        assert kept.priority == entry[-1]["score"]
        assert kept.doubt == pytest.approx(-math.expm1(ranked.log_probabilities[0]))
        assert kept.flags is not None
        # Errors expected at what is amber, for each look: one opens the task, one is for each place.
        assert kept.flags > 0
        assert (
            0
            < value_of(kept.priority) * (1 + kept.flags)
            < sum(
                sum(each.probabilities) if (each.start, each.end) not in best else 1.0 - max(each.probabilities)
                for each in ranked.candidates
            )
        )
        with service.reads.read() as session:
            row = find_project(session, shapes.PROJECT)
            assert row is not None
            assert row.label_config == shapes.CONFIG
            found = find_task(session, row.id, external_id="8")
        assert found is not None
        assert (found.text, found.language, found.length) == (shapes.TEXTS[0], "de", 8)

    def test_a_busy_database_does_not_fail_a_prediction(self, make_app: MakeApp, settings: Settings) -> None:
        app = make_app(patience=0.2)
        results(app, shapes.predict([shapes.task(1, "warm")]))
        service: Service = app.extensions["surespan"]
        other = sqlite3.connect(settings.database_url.removeprefix("sqlite:///"), isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        entry = results(app, shapes.predict([shapes.task(9, shapes.TEXTS[0])]))[0]
        assert entry[-1]["result"]
        assert service.recorder.backlog == 1
        assert post(app, "/setup", shapes.setup(project="77.1")).status_code == 200
        assert app.test_client().get("/health").status_code == 200
        other.execute("ROLLBACK")
        other.close()
        service.recorder.close(WAIT)
        assert served(service, "9") is not None

    def test_blind_tasks_are_empty_and_their_set_is_shadow(self, make_app: MakeApp) -> None:
        class SecondIsBlind(Present):
            def __call__(self, project: str, tasks: Sequence[Met]) -> list[Presentation]:
                assert project == shapes.PROJECT
                return [Presentation(Draw("audit", 0.5, 0.1, blind=each.task == "2"), quantile=0.4) for each in tasks]

        app = make_app(present=SecondIsBlind())
        tasks = [shapes.task(1, shapes.TEXTS[0]), shapes.task(2, shapes.TEXTS[0])]
        shown, blind = results(app, shapes.predict(tasks))
        assert shown[-1]["result"]
        version = shown[-1]["model_version"]
        assert blind == [{"model_version": version, "score": shown[-1]["score"], "result": []}]
        service: Service = app.extensions["surespan"]
        one, two = served(service, "1"), served(service, "2")
        assert one is not None
        assert two is not None
        assert (one.shadow, two.shadow) == (False, True)
        assert one.ranked == two.ranked


class TestInteractive:
    """Expectations are taken from what the model says without constraints, whatever that is."""

    @pytest.fixture
    def text(self, service: Service) -> str:
        """A text in whose best labeling the small model finds a person before a place."""
        predictor = service.views.view(shapes.PROJECT, shapes.CONFIG).predictor
        for labelled in read_labelled(SAMPLE).texts:
            spans = predictor.predict([labelled.text])[0].sets.labelings[0].spans
            if [span.label for span in spans] == ["PER", "LOC"]:
                return labelled.text
        pytest.fail("the small model finds no person with a place in any text of the sample")

    def ask(self, app: Flask, text: str, *regions: dict[str, Any], **more: Any) -> dict[str, Any]:
        body = shapes.predict([shapes.task(1, text, **more)], context={"result": list(regions)})
        answer = results(app, body)[0]
        assert isinstance(answer, dict)  # the editor takes `results[0].result`
        return answer

    @staticmethod
    def spans(answer: dict[str, Any]) -> list[tuple[int, int, str]]:
        values = [each["value"] for each in answer["result"]]
        return [(value["start"], value["end"], value["labels"][0]) for value in values]

    def test_what_is_fixed_is_kept_and_not_added_again(self, app: Flask, text: str) -> None:
        person, place = self.spans(self.ask(app, text))
        answer = self.ask(app, text, shapes.region(*place[:2], text, "Person", origin="manual"))
        assert self.spans(answer) == [person]
        for other in answer["alternatives"]:
            # Nothing of any labeling lies on what is fixed.
            assert all(end <= place[0] or start >= place[1] for start, end, _ in self.spans(other))

    def test_fixing_one_span_decides_the_rest_again(self, app: Flask, service: Service, text: str) -> None:
        person, place = self.spans(self.ask(app, text))
        half = text.index(" ")
        answer = self.ask(app, text, shapes.region(0, half, text, "LOC", origin="manual"))
        assert person not in self.spans(answer)
        predictor = service.views.view(shapes.PROJECT, shapes.CONFIG).predictor
        made = predictor.predict([text], fixed=[[TextSpan(0, half, "LOC")]])[0]
        best = made.char_spans(made.sets.labelings[0].spans)
        assert TextSpan(0, half, "LOC") in best
        assert [(start, end) for start, end, _ in self.spans(answer)] == [(s.start, s.end) for s in best[1:]]
        assert answer["score"] == pytest.approx(made.sets.labelings[0].probability)
        assert made.guarantee is Guarantee.NONE  # a set given what someone fixed promises nothing
        assert place[:2] in [(s.start, s.end) for s in best] or best[1:] != []

    def test_prelabels_in_view_are_not_suggested_again(self, app: Flask, text: str) -> None:
        person, place = self.spans(self.ask(app, text))
        shown = results(app, shapes.predict([shapes.task(1, text)]))[0]
        started = shapes.region(*person[:2], text, person[2], origin="prediction")
        gap = (person[1] + 1, text.index(" ", person[1] + 1))
        fixed = shapes.region(*gap, text, "LOC", origin="manual")
        suggested = self.spans(self.ask(app, text, started, fixed, predictions=shown))
        assert person not in suggested
        assert place not in suggested
        blank = self.ask(app, text, shapes.region(*person[:2], text, person[2], origin="manual"), predictions=shown)
        assert self.spans(blank) == [place]

    def test_a_region_that_cuts_a_word_keeps_it_free(self, app: Flask, text: str) -> None:
        person, place = self.spans(self.ask(app, text))
        answer = self.ask(app, text, shapes.region(place[0], place[1] - 1, text, "LOC", origin="manual"))
        assert self.spans(answer) == [person]

    def test_odd_tasks_and_odd_regions_have_an_answer(self, app: Flask, text: str) -> None:
        assert self.ask(app, 5)["result"] == []  # type: ignore[arg-type]
        assert self.spans(self.ask(app, text, {"value": "odd"}, {"from_name": []})) == self.spans(self.ask(app, text))


class TestVersions:
    def test_a_new_version_is_picked_up_and_changes_the_answer(self, app: Flask, service: Service) -> None:
        service.views.polled.every = 0.0
        before = post(app, "/setup", shapes.setup()).json["model_version"]
        assert before.endswith("+cal.0")
        results(app, shapes.predict([shapes.task(1, shapes.TEXTS[0])]))
        number = self.write(service, service.views.view(shapes.PROJECT, shapes.CONFIG))
        after = post(app, "/setup", shapes.setup()).json["model_version"]
        assert after == before.replace("+cal.0", f"+cal.{number}")
        entry = results(app, shapes.predict([shapes.task(1, shapes.TEXTS[0])]))[0]
        assert entry[-1]["model_version"] == after
        assert entry[-1]["result"][0]["meta"]["guarantee"] == "own"
        kept = served(service, "1")
        assert kept is not None
        assert kept.version_id == number
        # Other projects are not concerned; a project whose id is the same but created later is another one.
        assert post(app, "/setup", shapes.setup(project="31.1790000001")).json["model_version"] == before
        answer = app.test_client().get(f"/versions?project={shapes.PROJECT}").json
        assert answer["versions"] == [after, before]
        assert after in app.test_client().get("/versions").json["versions"]
        # Another label config is another label space, which these thresholds say nothing about.
        assert post(app, "/setup", shapes.setup(shapes.PLAIN_CONFIG)).json["model_version"].endswith("+cal.0")

    @pytest.mark.parametrize(
        "labels",
        [
            '<Label value="LOC"/><Label value="PER"/>',
            '<Label value="LOC"/><Label value="MISC"/><Label value="ORG"/><Label value="PER"/>',
            '<Label value="Name" predicted_values="PER,ORG"/><Label value="LOC"/>',
        ],
    )
    def test_setup_and_predict_name_the_same_version(self, app: Flask, labels: str) -> None:
        config = f'<View><Labels name="l" toName="t">{labels}</Labels><Text name="t" value="$text"/></View>'
        version = post(app, "/setup", shapes.setup(config)).json["model_version"]
        entry = results(app, shapes.predict([shapes.task(1, "a")], config=config))[0]
        assert entry[-1]["model_version"] == version

    @staticmethod
    def write(service: Service, view: Any, *, alpha: str = "0.1") -> int:
        content = view.predictor.calibration.thresholds.to_bytes()
        tagger = view.predictor.tagger
        with Store(service.writes.url) as store, store.write() as session:
            project = ensure_project(session, shapes.PROJECT)
            model = ensure_model(session, tagger.name, tagger.hash, classes=tagger.space.classes)
            return write_version(
                session,
                project.id,
                model_id=model.id,
                alpha=alpha,
                method="nc1",
                evidence="blind",
                guarantee="own",
                input_revision=0,
                content=content,
                thresholds=[],
            ).id

    def test_an_alpha_of_its_own_is_served_with_the_version_made_for_it(self, app: Flask, service: Service) -> None:
        service.views.polled.every = 0.0
        body = shapes.predict([shapes.task(1, shapes.TEXTS[0])])
        before = results(app, body)[0][-1]
        with Store(service.writes.url) as store, store.write() as session:
            set_project_alpha(session, ensure_project(session, shapes.PROJECT).id, alpha="0.25")
        assert results(app, body)[0][-1] == before  # as long as the version is the same, so are the sets
        assert before["result"][0]["meta"]["alpha"] == "0.1"
        self.write(service, service.views.view(shapes.PROJECT, shapes.CONFIG), alpha="0.25")
        after = results(app, body)[0][-1]
        assert after["result"][0]["meta"]["alpha"] == "0.25"
        assert after["model_version"] != before["model_version"]

    def test_a_prediction_waits_for_the_model_only_so_long(self, make_app: MakeApp) -> None:
        app = make_app(start=False, model_wait=0.05)
        answer = post(app, "/predict", shapes.predict([shapes.task(1, "a")]))
        assert answer.status_code == 503
        assert answer.json["hint"] == "it is still loading"
        assert answer.headers["Retry-After"]
        service_of(app).start()
        service_of(app).loader.tagger(60)
        assert results(app, shapes.predict([shapes.task(1, "a")]))  # its place was given back


class TestEvents:
    def test_every_kind_of_event_is_stored_without_its_secrets(self, app: Flask, service: Service) -> None:
        sent = shapes.events()
        numbers = [post(app, "/webhook", event).json["event"] for event in sent]
        with service.reads.read() as session:
            kept = list_events(session, "pending")
        assert [each.id for each in kept] == numbers
        assert [each.action for each in kept] == [event["action"] for event in sent]
        assert {each.project_key for each in kept} == {"31"}
        everything = json.dumps([each.payload for each in kept])
        assert "never-to-be-kept" not in everything
        assert kept[0].payload["annotation"] == sent[0]["annotation"]

    def test_train_queues_a_refit_and_a_training_once(self, app: Flask, service: Service) -> None:
        body = {"annotations": [], "project": shapes.PROJECT, "label_config": shapes.CONFIG, "params": {}}
        first, second = post(app, "/train", body), post(app, "/train", body)
        both = (first.json["job"], first.json["training"])
        assert first.json == second.json == {"status": "queued", "job": both[0], "training": both[1]}
        with service.reads.read() as session:
            jobs = list_jobs(session)
        assert [(job.kind, job.state, str(job.id)) for job in jobs] == [
            ("train", "queued", both[1]),
            ("refit", "queued", both[0]),
        ]
        listed = app.test_client().get(f"/api/v1/jobs?project={shapes.PROJECT}").json["jobs"]
        assert [job["kind"] for job in listed] == ["train", "refit"]

    def test_validate_says_what_a_config_can_hold(self, app: Flask) -> None:
        answer = post(app, "/validate", {"config": shapes.CONFIG}).json
        assert answer["labels"] == {"LOC": "LOC", "PER": "Person"}
        assert answer["flag"] == {"control": "flag", "label": "Needs review"}
        refused = post(app, "/validate", {"config": "<View>"})
        assert (refused.status_code, refused.json["expected"]) == (422, "well-formed XML")


def test_captured_requests_are_answered(app: Flask, service: Service) -> None:
    """The payloads that a real Label Studio sent, where they are at hand."""
    data = benchmark_data()
    captured = None if data is None else data.parent / "labelstudio"
    if captured is None or not captured.is_dir():
        pytest.skip("the captured payloads are not here")
    stored = 0
    for path in sorted(captured.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if "request" not in record:
            continue
        _, route = record["request"].split()
        answer = post(app, route, record["body"])
        assert answer.status_code == 200, path.name
        if route == "/predict":
            assert len(answer.json["results"]) == len(record["body"]["tasks"])
        stored += route == "/webhook"
    assert stored == 8
    with service.reads.read() as session:
        assert len(list_events(session, "pending")) == 8


def test_our_shapes_have_the_keys_of_the_captured_ones() -> None:
    data = benchmark_data()
    captured = None if data is None else data.parent / "labelstudio"
    if captured is None or not captured.is_dir():
        pytest.skip("the captured payloads are not here")

    def body(name: str) -> dict[str, Any]:
        read: dict[str, Any] = json.loads(Path(captured / f"{name}.json").read_text(encoding="utf-8"))["body"]
        return read

    assert shapes.setup().keys() == body("setup").keys()
    assert shapes.predict([]).keys() == body("predict_batch1").keys()
    assert shapes.task(1, "a").keys() == body("predict_batch1")["tasks"][0].keys()
    for event in shapes.events()[:-1]:
        assert event.keys() == body(f"webhook_{event['action']}").keys()
