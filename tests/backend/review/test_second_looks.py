"""Second looks over a real database and a small real model: judged, listed, settled, and not asked about for ever."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from sqlalchemy import event

from backend.calibration.score_labels import score_unscored
from backend.cli import main
from backend.domain.records import AnnotationRecord, Draw, ModelRecord, ProjectRecord, SequenceScores, TextSpan
from backend.review import second_looks
from backend.review.second_looks import find_looks, make_lists, random_order_of, refresh_looks, score_texts
from backend.review.second_looks_report import looks_report
from backend.store import Store
from backend.store.calibration import record_scores
from backend.store.labels import current_label, delete_annotation, record_annotation, unscored_labels
from backend.store.projects import ensure_model, ensure_project, ensure_task, find_task
from backend.store.second_looks import (
    CHECK,
    LISTED,
    LookTable,
    ScoredLook,
    count_looks,
    list_looks,
    load_looks,
    record_looks,
    settle_look,
    unjudged_tasks,
)
from backend.store.training import record_training_tasks
from backend.tagger.loading import load_tagger
from backend.tagger.readers import LabelledText, read_labelled
from backend.tagger.tagger import Tagger
from tests.support.paths import SAMPLE

NOON = datetime(2026, 11, 2, 12, tzinfo=UTC)
COPIES = 5  # the sample, so many times: the lists need some hundred labels


@pytest.fixture(scope="module")
def tagger(tiny_model: Path) -> Tagger:
    return load_tagger(tiny_model)


def swapped(spans: tuple[TextSpan, ...]) -> tuple[TextSpan, ...]:
    """Give the first entity another class."""
    first, *rest = spans
    other = "LOC" if first.label == "PER" else "PER"
    return (TextSpan(first.start, first.end, other), *(TextSpan(*each) for each in rest))


def add_rows(store: Store, project: ProjectRecord, model: ModelRecord) -> None:
    """Give every label its calibration row. What these say is not looked at here, so they need no model."""
    with store.write() as session:
        for label in unscored_labels(session, project.id, model_id=model.id, limit=1000):
            record_scores(
                session,
                project.id,
                model_id=model.id,
                task_id=label.task_id,
                label_revision=label.revision,
                stratum="de/1-10",
                evidence="blind",
                scores=SequenceScores(0.5, 1.0, 0.6),
            )


@pytest.fixture
def labelled(
    request: pytest.FixtureRequest,
    store: Store,
    tagger: Tagger,
) -> tuple[Store, ProjectRecord, ModelRecord, set[str]]:
    """A project of randomly drawn labels, one in ten of them wrong; returns those too."""
    texts = [text for text in read_labelled(SAMPLE).texts if text.spans] * getattr(request, "param", 2)
    wrong: set[str] = set()
    with store.write() as session:
        project = ensure_project(session, "7.1", title="Letters")
        model = ensure_model(session, tagger.name, tagger.hash, classes=tagger.space.classes)
        for i, text in enumerate(texts):
            task = ensure_task(
                session, project.id, external_id=str(i), text=text.text, draw=Draw("file", 0.5, 1.0, blind=True)
            )
            spans: tuple[TextSpan, ...] = tuple(TextSpan(*each) for each in text.spans)
            if i % 10 == 3:
                spans = swapped(text.spans)
                wrong.add(str(i))
            record_annotation(session, task.id, AnnotationRecord(i + 1, NOON + timedelta(seconds=i), spans))
    add_rows(store, project, model)
    return store, project, model, wrong


def truth_of(number: int) -> tuple[TextSpan, ...]:
    texts = [text for text in read_labelled(SAMPLE).texts if text.spans] * COPIES
    return tuple(TextSpan(*each) for each in texts[number].spans)


@pytest.mark.parametrize("labelled", [COPIES], indirect=True)
def test_the_whole_loop(labelled: tuple[Store, ProjectRecord, ModelRecord, set[str]], tagger: Tagger) -> None:
    store, project, model, wrong = labelled
    known = refresh_looks(store, project, model=model, tagger=tagger, fdr="0.2")
    assert known["scored"] == known["reference"] + known["tested"] + known["inexpressible"]
    assert known["reference"] > 50
    with store.read() as session:
        assert unjudged_tasks(session, project.id, model_id=model.id) == []
        assert list_looks(session, project.id, model_id=model.id, state=LISTED) == []  # the reference holds errors too
        first = list_looks(session, project.id, model_id=model.id, state=CHECK)
    assert first
    assert sum(each.task in wrong for each in first) > len(first) / 2
    assert [each.score for each in first] == sorted((each.score for each in first), reverse=True)

    # A person checks what is asked: wrong labels are corrected, right ones are said to be right.
    later = 1000
    for _ in range(20):
        with store.read() as session:
            asked = list_looks(session, project.id, model_id=model.id, state=CHECK)
        if not asked:
            break
        for each in asked:
            later += 1
            with store.write() as session:
                if each.task in wrong:
                    task = find_task(session, project.id, external_id=each.task)
                    assert task is not None
                    fixed = AnnotationRecord(
                        int(each.task) + 1, NOON + timedelta(seconds=later), truth_of(int(each.task))
                    )
                    record_annotation(session, task.id, fixed)
                else:
                    assert settle_look(session, project.id, task=each.task) is not None
        wrong -= {each.task for each in asked}
        add_rows(store, project, model)
        refresh_looks(store, project, model=model, tagger=tagger)
    else:
        pytest.fail("checking does not come to an end")

    with store.read() as session:
        listed = list_looks(session, project.id, model_id=model.id, state=LISTED, limit=500)
        report = looks_report(session, project, model, base="http://label.studio/")
    assert report["fdr"] == "0.2"  # kept since the first time
    assert len(listed) >= 5
    assert sum(each.task in wrong for each in listed) >= 0.7 * len(listed)
    assert all(each.p_value is not None and each.p_value <= 0.2 for each in listed)
    entry = next(each for each in report["listed"] if each["task"] in wrong)
    assert entry["url"] == f"http://label.studio/projects/7/data?task={entry['task']}"
    assert entry["implausible"], entry
    assert entry["instead"], entry
    assert entry["implausible"][0]["probability"] < entry["instead"][0]["probability"]
    assert entry["text"][entry["word"]["start"] : entry["word"]["end"]] == entry["word"]["text"]
    assert "At most 20 %" in report["summary"]


def test_what_was_settled_stays_off_the_list_until_it_changes(
    labelled: tuple[Store, ProjectRecord, ModelRecord, set[str]], tagger: Tagger
) -> None:
    store, project, model, _ = labelled
    refresh_looks(store, project, model=model, tagger=tagger)
    with store.read() as session:
        entry = list_looks(session, project.id, model_id=model.id, state=CHECK)[0]
        task = find_task(session, project.id, external_id=entry.task)
    assert task is not None
    with store.write() as session:
        assert settle_look(session, project.id, task=entry.task) == entry.label_revision
    with store.read() as session:
        assert entry.task not in {each.task for each in list_looks(session, project.id, model_id=model.id, state=CHECK)}
    make_lists(store, project.id, model_id=model.id)
    with store.read() as session:
        assert entry.task not in {
            each.task for each in list_looks(session, project.id, model_id=model.id, state=CHECK, limit=500)
        }
    # Under another model what was settled is settled.
    with store.write() as session:
        other = ensure_model(session, "other", "f" * 64, classes=tagger.space.classes)
        look = ScoredLook(task.id, entry.label_revision, 30.0, 1.0, 0.0, {})
        record_looks(session, project.id, model_id=other.id, looks=[look])
        record_looks(session, project.id, model_id=other.id, looks=[replace(look, score=31.0)])
        assert count_looks(session, project.id, model_id=other.id) == (1, 0)
        # A label that changed after it was listed has had its second look.
        edit = AnnotationRecord(int(entry.task) + 1, NOON + timedelta(days=1), ())
        record_annotation(session, task.id, edit)
    add_rows(store, project, model)
    refresh_looks(store, project, model=model, tagger=tagger)
    with store.read() as session:
        table = load_looks(session, project.id, model_id=model.id)
        label = current_label(session, task.id)
    assert label is not None
    assert label.revision > entry.label_revision
    assert table.settled.sum() == 1
    assert not table.settled[table.id != table.id[table.settled][0]].any()


def test_a_label_that_is_gone_is_not_judged(
    labelled: tuple[Store, ProjectRecord, ModelRecord, set[str]], tagger: Tagger
) -> None:
    store, project, model, _ = labelled
    before = refresh_looks(store, project, model=model, tagger=tagger)
    with store.read() as session:
        first, second = list_looks(session, project.id, model_id=model.id, state=CHECK)[:2]
        task = find_task(session, project.id, external_id=second.task)
    assert task is not None
    with store.write() as session:
        delete_annotation(session, project.id, annotation_id=first.annotation_id or 0, at=NOON + timedelta(days=1))
    with store.read() as session:
        seen = {each.task for each in list_looks(session, project.id, model_id=model.id, state=CHECK)}
    assert first.task not in seen  # at once, before anything is judged again
    after = refresh_looks(store, project, model=model, tagger=tagger)
    assert after["reference"] + after["tested"] == before["reference"] + before["tested"] - 1


def test_labels_out_of_reach_and_labels_of_training_are_not_judged(store: Store, tagger: Tagger) -> None:
    with store.write() as session:
        project = ensure_project(session, "7.1")
        model = ensure_model(session, tagger.name, tagger.hash, classes=tagger.space.classes)
        spans = {"a": (TextSpan(1, 3, "PER"),), "b": (TextSpan(0, 4, "PER"),), "c": (TextSpan(0, 4, "PER"),)}
        ids = []
        for number, (name, said) in enumerate(spans.items()):
            draw = Draw("file", 0.5, 1.0, blind=True)
            task = ensure_task(session, project.id, external_id=name, text="Anna lives in Bonn now", draw=draw)
            record_annotation(session, task.id, AnnotationRecord(number + 1, NOON, said))
            ids.append(task.id)
        record_training_tasks(session, tagger.hash, ids[2:], purpose="training")
    score_unscored(store, project, model=model, tagger=tagger)
    known = refresh_looks(store, project, model=model, tagger=tagger)
    assert (known["scored"], known["inexpressible"], known["tested"]) == (2, 1, 1)


def test_a_label_that_fails_does_not_stop_the_list(
    labelled: tuple[Store, ProjectRecord, ModelRecord, set[str]], tagger: Tagger, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, project, model, _ = labelled
    real = second_looks.score_texts
    poison = next(text.text for text in read_labelled(SAMPLE).texts if text.spans)

    def score(tagger: Tagger, texts: Any) -> Any:
        if any(each.text == poison for each in texts):
            raise ValueError(poison)
        return real(tagger, texts)

    with monkeypatch.context() as patched:
        patched.setattr(second_looks, "score_texts", score)
        without = refresh_looks(store, project, model=model, tagger=tagger)
    all_of_them = refresh_looks(store, project, model=model, tagger=tagger)
    assert 0 < without["scored"] < all_of_them["scored"]


def test_evidence_names_what_the_label_and_the_model_have(tagger: Tagger) -> None:
    text = read_labelled(SAMPLE).texts[0]
    right = score_texts(tagger, [text])[0]
    wrong = score_texts(tagger, [LabelledText(text.text, (), language=text.language)])[0]
    assert wrong[0] > right[0]
    assert wrong[1] == pytest.approx(right[1])  # the doubt is the text's, not the label's
    assert wrong[2]["label"] == []
    assert {each[2] for each in wrong[2]["model"]} <= set(tagger.space.classes)
    cut = score_texts(tagger, [LabelledText(text.text, (TextSpan(0, 1, "PER"),), language=text.language)])[0]
    assert math.isinf(cut[0])


def test_picked_labels_are_compared_with_equally_doubtful_ones() -> None:
    rng = np.random.default_rng(3)
    n = 3000
    doubt = rng.exponential(size=n)
    drawn = np.arange(n) < 2000
    score = rng.exponential(size=n) * (0.2 + doubt)  # right labels of doubtful texts are stranger
    doubt[~drawn] += 2.0  # those that were picked are more doubtful, their labels right all the same
    score[~drawn] = rng.exponential(size=1000) * (0.2 + doubt[~drawn] - 2.0)
    blank = np.zeros(n, np.bool_)
    table = LookTable(np.arange(n), score, doubt, rng.random(n), drawn, blank, blank)
    found = find_looks(table, fdr="0.1")
    assert found.reference.size == 600
    assert drawn[found.reference].all()
    assert found.picked.size == 1000
    few = find_looks(replace(table, drawn=np.arange(n) < 1000), fdr="0.1")
    assert few.picked.size == 0  # too few to compare like with like


def test_places_are_even_and_depend_on_the_names_alone() -> None:
    orders = np.array([random_order_of("7.1", str(i)) for i in range(4000)])
    assert np.histogram(orders, bins=10, range=(0, 1))[0].min() > 320
    assert random_order_of("7.1", "3") != random_order_of("8.1", "3")


def test_a_page_reads_few_rows_however_many_labels_there_are(
    labelled: tuple[Store, ProjectRecord, ModelRecord, set[str]], tagger: Tagger
) -> None:
    store, project, model, _ = labelled
    refresh_looks(store, project, model=model, tagger=tagger)
    statements: list[tuple[str, Any]] = []
    with store.read() as session:
        engine = session.get_bind()
        event.listen(engine, "before_cursor_execute", lambda *a: statements.append((a[2], a[3])))
        looks_report(session, project, model, limit=5)
    reads = [each for each, _ in statements if each.lstrip().upper().startswith("SELECT")]
    assert len(reads) == 3
    assert sum("LIMIT" in each for each in reads) == 2
    if store.engine.dialect.name == "sqlite":  # PostgreSQL chooses by size, and this is a small table
        for statement, values in [pair for pair in statements if "LIMIT" in pair[0]]:
            with store.engine.connect() as connection:
                plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all()
            steps = " ".join(str(row[3]) for row in plan)
            assert "USING INDEX ix_second_looks_state" in steps
            assert "SCAN" not in steps


def test_the_command_prints_both_lists(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SURESPAN_DATABASE_URL", f"sqlite:///{tmp_path / 'store.db'}")
    monkeypatch.setenv("SURESPAN_MODEL", str(tiny_model))
    runner = CliRunner()
    empty = runner.invoke(main, ["second-looks", "--json"])
    assert empty.exit_code == 0, empty.output
    assert json.loads(empty.stdout)["listed"] == []
    assert runner.invoke(main, ["calibrate", str(SAMPLE)]).exit_code == 0
    made = json.loads(runner.invoke(main, ["second-looks", "--json", "--fdr", "0.5"]).stdout)
    assert made["fdr"] == "0.5"
    assert made["reference"] > 0
    shown = runner.invoke(main, ["second-looks"])
    assert shown.exit_code == 0, shown.output
    if made["check"]:
        task = made["check"][0]["task"]
        kept = json.loads(runner.invoke(main, ["second-looks", "--keep", task, "--json"]).stdout)
        assert task not in {each["task"] for each in kept["check"]}
        assert kept["checked"] == made["checked"] + 1
    refused = runner.invoke(main, ["second-looks", "--fdr", "2"])
    assert refused.exit_code == 1
    assert "expected a decimal number between 0 and 1" in refused.output
    missing = runner.invoke(main, ["second-looks", "--keep", "nothing"])
    assert missing.exit_code == 1
    assert "expected a task whose label was checked" in missing.output
