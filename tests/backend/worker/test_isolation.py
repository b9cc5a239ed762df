"""One label, text or project never stops the others: through the real worker, on both databases."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import sqlalchemy as sa

from backend.calibration import score_labels, score_rows
from backend.domain.records import EntityRow
from backend.errors import StoreBusy
from backend.prediction.scoring import ScoredUnit
from backend.store import Store
from backend.store.attempts import DEATHS, FAILURES, begin_attempts, count_set_aside, list_set_aside, retry_labels
from backend.store.events import inbox_depth, store_events
from backend.store.labels import labels_of, list_labels
from backend.store.tables import CalibrationScore, Event, Project, Task
from backend.worker.worker import BATCH_SECONDS
from tests.support.workers import MakeWorker, attempts, catch_up, labelled, let_attempts_rest, scored_tasks

TEXT = "Anna met Bob in Paris."


def failing_on(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    """Let scoring fail for texts with this word."""
    real = score_labels.score_labelled

    def score(tagger: Any, texts: Any, **more: Any) -> Any:
        if any(word in each.text for each in texts):
            raise ValueError(f"a library repeats the text: {texts[0].text}")
        return real(tagger, texts, **more)

    monkeypatch.setattr(score_labels, "score_labelled", score)


def test_two_regions_over_the_same_tokens_stop_nothing(store: Store, make_worker: MakeWorker) -> None:
    same = [(0, 5, "Person"), (0, 4, "Person")]
    store_events(store, [labelled(1, TEXT, same), labelled(2, f"{TEXT} Later.", [(0, 4, "Person")])])
    make_worker().drain()
    assert scored_tasks(store) == {"1", "2"}
    assert attempts(store) == {}


def test_a_label_that_fails_is_set_aside_and_the_others_are_scored(
    store: Store, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_on(monkeypatch, "poison")
    names = ["one", "poison", "two"]
    store_events(store, [labelled(n, f"{TEXT} {name}", [(0, 4, "Person")]) for n, name in enumerate(names)])
    worker = make_worker()
    worker.drain()
    assert scored_tasks(store) == {"0", "2"}
    # A library may have put a piece of the text into its message.
    assert attempts(store) == {"1": (1, "ValueError", False)}
    for _ in range(FAILURES - 1):
        catch_up(worker)
    assert attempts(store) == {"1": (FAILURES, "ValueError", True)}
    catch_up(worker)
    assert attempts(store) == {"1": (FAILURES, "ValueError", True)}, "nobody tries again"
    with store.read() as session:
        (aside,) = list_set_aside(session)
        assert (aside.task, aside.reason) == ("1", "ValueError")
        assert list(count_set_aside(session).values()) == [1]
    # A new revision begins anew; asking for it again does too.
    later = "2026-11-03T09:00:00.000000Z"
    store_events(store, [labelled(1, f"{TEXT} poison", [(9, 12, "Person")], updated_at=later)])
    worker.drain()
    assert attempts(store)["1"] == (1, "ValueError", False)
    for _ in range(FAILURES - 1):
        catch_up(worker)
    assert attempts(store)["1"][2] is True
    monkeypatch.undo()
    assert store.run(retry_labels) == 1
    catch_up(worker)
    assert scored_tasks(store) == {"0", "1", "2"}
    assert attempts(store) == {}


def test_rows_that_the_database_refuses_are_written_one_by_one(
    store: Store, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = score_rows.entity_rows

    def doubled(item: ScoredUnit) -> list[EntityRow]:
        rows = real(item)
        return (rows or [EntityRow(0, 1, "PER", 0.5, 0.5, 1.0, 1.0)]) * 2 if len(item.tokens) > 10 else rows

    monkeypatch.setattr(score_rows, "entity_rows", doubled)
    long = f"{TEXT} And then some more words, which make it long."
    store_events(store, [labelled(n, long if n == 3 else f"{TEXT} {n}", [(0, 4, "Person")]) for n in range(6)])
    worker = make_worker()
    worker.drain()
    assert scored_tasks(store) == {"0", "1", "2", "4", "5"}
    assert str(attempts(store)["3"][1]).startswith("StoreConflict: ")
    assert TEXT not in str(attempts(store)["3"][1])
    for _ in range(FAILURES - 1):
        catch_up(worker)
    assert attempts(store)["3"][2]


def test_trouble_of_the_database_is_no_label_s_fault(
    store: Store, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: object, **__: object) -> int:
        raise StoreBusy("another process held a lock")

    worker = make_worker()
    store_events(store, [labelled(n, f"{TEXT} {n}", []) for n in range(3)])
    with monkeypatch.context() as patched:
        patched.setattr(score_labels, "write_rows", busy)
        for _ in range(DEATHS + 1):
            with pytest.raises(StoreBusy):
                worker.drain()
            assert attempts(store) == {}
    worker.drain()
    assert scored_tasks(store) == {"0", "1", "2"}


def test_labels_that_a_process_died_with_come_last_and_one_by_one(
    store: Store, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = make_worker()
    store_events(store, [labelled(n, f"{TEXT} {n}", []) for n in range(1, 6)])
    with monkeypatch.context() as patched:
        patched.setattr(worker, "_take_turn", lambda _: 0)
        worker.step_events()
    with store.read() as session:
        project = session.execute(sa.select(Project.id)).scalar_one()
        labels = labels_of(session, session.execute(sa.select(Task.id)).scalars().all())
        tasks = {row.external_id: row.id for row in session.execute(sa.select(Task.external_id, Task.id))}
    model = worker.context().model_of(worker._projects()[0])[0].id
    held = [labels[tasks["1"]], labels[tasks["2"]]]

    def die() -> dict[int, int]:
        return store.run(lambda session: begin_attempts(session, project, model_id=model, labels=held))

    assert list(die().values()) == [1, 1]
    pages = []
    real = score_labels.write_rows

    def write(session: Any, **more: Any) -> int:
        pages.append([about.external_id for (_, about), _ in more["pairs"]])
        return real(session, **more)

    monkeypatch.setattr(score_labels, "write_rows", write)
    worker._turns.note_all(project)
    worker.drain()
    assert pages == [["3", "4", "5"], ["1"], ["2"]]
    assert attempts(store) == {}
    with store.write() as session:
        session.execute(sa.delete(CalibrationScore))
    for count in range(1, DEATHS + 1):
        assert set(die().values()) == {count}
    let_attempts_rest(store)
    assert die() == {}
    assert attempts(store)["1"] == (DEATHS, f"the process ended {DEATHS} times while it scored this label", True)


def test_attempts_of_several_workers_at_once_are_no_deaths(store: Store, make_worker: MakeWorker) -> None:
    worker = make_worker()
    store_events(store, [labelled(1, TEXT, [(0, 4, "Person")])])
    worker.drain()
    (project,) = worker._projects()
    model = worker.context().model_of(project)[0].id
    with store.write() as session:
        session.execute(sa.delete(CalibrationScore))
        label = list_labels(session, project.id)
    others = [
        store.run(lambda session: begin_attempts(session, project.id, model_id=model, labels=label))
        for _ in range(DEATHS + 2)
    ]
    assert [list(each.values()) for each in others] == [*([n] for n in range(1, DEATHS + 1)), [], []]
    assert attempts(store) == {"1": (DEATHS, None, False)}, "they may all be at work still"
    worker._turns.note_all(project.id)
    worker.drain()
    assert (scored_tasks(store), attempts(store)) == (set(), {"1": (DEATHS, None, False)}), "it is left to them"
    catch_up(worker)
    reason = f"the process ended {DEATHS} times while it scored this label"
    assert (scored_tasks(store), attempts(store)) == (set(), {"1": (DEATHS, reason, True)}), "nobody came back"


def test_texts_that_are_never_predicted_are_not_scored(store: Store, make_worker: MakeWorker) -> None:
    store_events(store, [labelled(1, "Anna " * 100, [(0, 4, "Person")]), labelled(2, TEXT, [(0, 4, "Person")])])
    make_worker(max_text=200).drain()
    assert scored_tasks(store) == {"2"}
    ((tried, reason, aside),) = attempts(store).values()
    assert (tried, aside) == (0, True)
    assert "SURESPAN_MAX_TEXT" in str(reason)


def test_trouble_with_one_project_leaves_the_others_alone(
    store: Store, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = score_labels.class_names

    def names(config: str | None, classes: tuple[str, ...]) -> Any:
        if config and "strange" in config:
            raise RuntimeError("no such config")
        return real(config, classes)

    monkeypatch.setattr(score_labels, "class_names", names)
    odd = labelled(1, TEXT, [], project=30)
    odd["project"]["label_config"] += "<!-- strange -->"
    store_events(store, [odd, labelled(2, TEXT, [])])
    make_worker().drain()
    assert scored_tasks(store) == {"2"}


def test_a_flood_of_one_project_delays_itself_alone(store: Store, make_worker: MakeWorker) -> None:
    flood = [labelled(number, f"{TEXT} {number}", [(0, 4, "Person")]) for number in range(300)]
    quiet = [labelled(number, f"{TEXT} {number}", [(0, 4, "Person")], project=32) for number in range(3_000, 3_020)]
    store_events(store, flood)
    store_events(store, quiet)
    worker = make_worker()
    worker.step_events()
    with store.read() as session:
        left = session.execute(sa.select(sa.func.count()).where(Event.project_key == "32", Event.state == "pending"))
        assert left.scalar_one() == 0, "twenty turns among fifty are enough for twenty events"
        assert inbox_depth(session)["pending"] == 270
    assert {str(number) for number in range(3_000, 3_020)} <= scored_tasks(store)


def test_a_batch_of_events_has_its_time_and_one_event_at_least(store: Store, make_worker: MakeWorker) -> None:
    store_events(store, [labelled(number, f"{TEXT} {number}", []) for number in range(4)])
    worker = make_worker()
    ticks = itertools.count()
    worker._clock = lambda: next(ticks) * BATCH_SECONDS  # every look at the clock takes all the time there is
    left = []
    for _ in range(4):
        assert worker.step_events()
        with store.read() as session:
            left.append(inbox_depth(session)["pending"])
    assert left == [3, 2, 1, 0]
    worker.drain()
    assert scored_tasks(store) == {"0", "1", "2", "3"}
