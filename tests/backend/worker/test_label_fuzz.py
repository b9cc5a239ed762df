"""Labels of every odd kind through the real worker: none stops another."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import sqlalchemy as sa

from backend.store import Store
from backend.store.attempts import FAILURES
from backend.store.events import inbox_depth, store_events
from backend.store.tables import Event, Label, Task
from tests.support.trouble import NAMES, random_spans, random_text
from tests.support.workers import MakeWorker, attempts, catch_up, labelled, scored_tasks

CLASSES = ["Person", "LOC", "PER", *NAMES.values()]
AT_ONCE = 500
HEALTHY = "Anna met Bob in Paris."


def odd_label(rng: random.Random, number: int) -> dict[str, Any]:
    """Return an annotation of a random text, with regions that nobody has checked."""
    text = random_text(rng)
    spans = random_spans(rng, text, classes=CLASSES)
    if rng.random() < 0.05:  # far outside the text, and the wrong way round
        spans.append((rng.randint(-5, 10**12), rng.randint(-5, 10**12), "Person"))
    return labelled(number, text, spans, project=rng.choice((31, 32)))


def run_labels(store: Store, make_worker: MakeWorker, *, count: int, seed: int) -> None:
    """Send odd labels in two projects, then a healthy one to each; every one has its row, or a reason."""
    rng = random.Random(seed)
    worker = make_worker()
    for begin in range(1, count + 1, AT_ONCE):
        store_events(store, [odd_label(rng, number) for number in range(begin, min(begin + AT_ONCE, count + 1))])
        worker.drain()
    last = {31: count + 1, 32: count + 2}
    spans = [(0, 4, "Person"), (16, 21, "LOC")]
    store_events(store, [labelled(number, HEALTHY, spans, project=each) for each, number in last.items()])
    worker.drain()
    scored = scored_tasks(store)
    assert {str(number) for number in last.values()} <= scored
    for _ in range(FAILURES):
        catch_up(worker)

    with store.read() as session:
        waiting = inbox_depth(session)["pending"]
        kept = set(session.execute(sa.select(Task.external_id).join(Label, Label.task_id == Task.id)).scalars())
        dead = session.execute(sa.select(Event.error).where(Event.state == "dead")).scalars().all()
    scored = scored_tasks(store)
    aside = {task: str(error) for task, (_, error, given_up) in attempts(store).items() if given_up}
    print(
        f"\n{store.engine.dialect.name}: {count + len(last):,} labels sent, {len(scored):,} scored, "
        f"{len(aside)} set aside {dict(Counter(aside.values()))}, {len(dead)} refused {dict(Counter(map(str, dead)))}"
    )
    assert waiting == 0
    assert len(kept) + len(dead) == count + len(last), "nothing is lost"
    assert kept - scored == set(aside), attempts(store)
    assert all(aside.values()), "each with a reason"
    # Only what no reader could take for a region is refused, and nearly everything is scored.
    assert all(str(error).startswith("InvalidPayload: expected ") for error in dead), set(dead)
    assert len(scored) > 0.8 * count


def test_no_label_stops_another(store: Store, make_worker: MakeWorker) -> None:
    run_labels(store, make_worker, count=60, seed=5)


@pytest.mark.slow
def test_ten_thousand_labels_stop_no_other(store: Store, make_worker: MakeWorker) -> None:
    run_labels(store, make_worker, count=10_000, seed=6)
