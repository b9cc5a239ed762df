"""Labels of long texts wait behind all others in the worker, and come to the same end: in turns, never in seconds."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import sqlalchemy as sa

from backend.calibration import score_labels
from backend.calibration.score_labels import score_unscored
from backend.domain.precedence import LONG
from backend.store import Store
from backend.store.attempts import DEATHS
from backend.store.events import store_events
from backend.store.tables import CalibrationScore, EntityScore
from backend.worker.worker import Worker
from tests.support.waiting import WAIT
from tests.support.workers import MakeWorker, attempts, catch_up, labelled, scored_tasks

SENTENCE = "Anna met Bob in Paris. "
DOCUMENT = SENTENCE * (LONG // len(SENTENCE) + 1)
SPANS = [(0, 4, "Person"), (9, 12, "Person")]


def sent(number: int, text: str = SENTENCE, *, project: int = 31, **more: Any) -> dict[str, Any]:
    return labelled(number, f"{text}{number}", SPANS, project=project, **more)


def test_every_project_has_one_long_text_a_turn_and_short_ones_come_first(
    store: Store, make_worker: MakeWorker
) -> None:
    loud = [sent(number, DOCUMENT, project=41 + number % 2) for number in range(6)]
    store_events(store, [*loud, sent(10, project=43), sent(11, project=41)])
    worker = make_worker()
    worker.step_events()
    assert scored_tasks(store) == {"10", "11"}
    assert attempts(store) == {}, "nothing is begun"
    assert worker.step_long()
    assert scored_tasks(store) == {"10", "11", "0", "1"}, "one of each project"
    store_events(store, [sent(12, project=43)])
    worker.step_events()
    assert scored_tasks(store) == {"10", "11", "12", "0", "1"}
    assert worker.step_long()
    assert not worker.step_long()
    assert scored_tasks(store) == {"10", "11", "12", *map(str, range(6))}
    assert attempts(store) == {}


def test_a_label_is_scored_while_a_long_text_is_under_way(
    store: Store, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = make_worker()
    store_events(store, [sent(1, DOCUMENT, project=41)])
    worker.step_events()
    begun, leave = threading.Event(), threading.Event()
    real = score_labels.score_labelled

    def score(tagger: Any, texts: Any, **more: Any) -> Any:
        if len(texts[0].text) > LONG:
            begun.set()
            assert leave.wait(WAIT)
        return real(tagger, texts, **more)

    monkeypatch.setattr(score_labels, "score_labelled", score)
    thread = threading.Thread(target=worker.step_long)
    thread.start()
    assert begun.wait(WAIT)
    assert attempts(store) == {"1": (1, None, False)}, "counted before the work"
    store_events(store, [sent(2, project=42)])
    worker.step_events()
    assert scored_tasks(store) == {"2"}
    later = sent(1, DOCUMENT, project=41, updated_at="2026-11-03T09:00:00.000000Z")
    later["annotation"]["result"] = later["annotation"]["result"][:1]
    store_events(store, [later])
    worker.step_events()
    leave.set()
    thread.join(WAIT)
    assert worker._long_turns, "the label changed while it was scored: that is noted"
    worker.drain()
    assert scored_tasks(store) == {"1", "2"}
    with store.read() as session:
        live = sa.select(CalibrationScore.label_revision).where(CalibrationScore.removed_at_revision.is_(None))
        assert set(session.execute(live.where(CalibrationScore.unit > 5)).scalars()) == {2}
    assert attempts(store) == {}


def rows(store: Store) -> list[Any]:
    """Everything that scoring has written of labels, but for ids and times."""
    score, entity = CalibrationScore, EntityScore
    columns = [score.unit, score.start, score.stop, score.drawn, score.nll, score.rank, score.cumulative]
    more = [entity.start, entity.end, entity.label, entity.probability, entity.cumulative, entity.rank]
    live = sa.select(score.task_id, *columns, *more).outerjoin(entity, entity.score_id == score.id)
    with store.read() as session:
        found = session.execute(live.where(score.removed_at_revision.is_(None)))
        return sorted(tuple(map(repr, row)) for row in found)


def score_alone(worker: Worker) -> None:
    """Score what has no row, without turns."""
    for project in worker._projects():
        model, tagger = worker.context().model_of(project)
        score_unscored(worker.store, project, model=model, tagger=tagger)


def test_scores_are_the_same_whichever_way_they_come(store: Store, make_worker: MakeWorker) -> None:
    worker = make_worker()
    store_events(store, [sent(1, DOCUMENT), sent(2), sent(3, DOCUMENT), sent(4)])
    worker.drain()
    kept = rows(store)
    assert len(kept) > 2 * len(DOCUMENT) // len(SENTENCE)
    with store.write() as session:
        session.execute(sa.delete(CalibrationScore))
    score_alone(worker)
    assert rows(store) == kept


def test_a_long_text_is_written_alone(store: Store, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[list[str]] = []
    real = score_labels.write_rows

    def write(session: Any, **more: Any) -> int:
        pages.append([about.external_id for (_, about), _ in more["pairs"]])
        return real(session, **more)

    worker = make_worker()
    store_events(store, [sent(1), sent(2), sent(3, DOCUMENT), sent(4, DOCUMENT), sent(5)])
    with monkeypatch.context() as patched:
        patched.setattr(worker, "_take_turn", lambda *_, **__: 0)
        worker.step_events()
    monkeypatch.setattr(score_labels, "write_rows", write)
    score_alone(worker)
    assert pages == [["1", "2"], ["3"], ["4"], ["5"]], "so that two of them never take memory at once"


def test_a_long_text_that_kills_the_worker_is_set_aside_like_any_other(
    store: Store, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """What no handler catches: to the database it looks as a killed process does."""

    real = score_labels.score_labelled

    def score(tagger: Any, texts: Any, **more: Any) -> Any:
        if len(texts[0].text) > LONG:
            raise Killed
        return real(tagger, texts, **more)

    monkeypatch.setattr(score_labels, "score_labelled", score)
    store_events(store, [sent(1, DOCUMENT), sent(2)])
    for count in range(1, DEATHS + 1):
        with pytest.raises(Killed):
            catch_up(make_worker())
        assert attempts(store) == {"1": (count, None, False)}
        assert scored_tasks(store) == {"2"}
    catch_up(make_worker())
    assert attempts(store)["1"][2] is True
    store_events(store, [sent(3)])
    make_worker().drain()
    assert scored_tasks(store) == {"2", "3"}
