"""Which labels may be suggested elsewhere, over rows that plain SQL has written."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from backend.domain.records import TextSpan
from backend.store import Store
from backend.store.projects import ensure_project
from backend.store.same_words import LabelledText, LabelMark, load_labelled, newest_labels
from tests.support.raw_labels import insert_label

TEXT, SPANS = "Zoë 🎉 in Wien", [(0, 3, "PER"), (9, 13, "LOC")]


@pytest.fixture
def project(store: Store) -> int:
    return store.run(lambda session: ensure_project(session, "7.1")).id


def test_the_newest_labels_come_first_with_their_texts(store: Store, project: int) -> None:
    other = store.run(lambda session: ensure_project(session, "8.1")).id
    insert_label(store, other, "1", TEXT, SPANS)
    numbers = [insert_label(store, project, str(i), TEXT, SPANS, length=i or None) for i in range(3)]
    with store.read() as session:
        marks = newest_labels(session, project, limit=10)
        assert marks == [
            LabelMark(numbers[2], 1, 2),
            LabelMark(numbers[1], 1, 1),
            LabelMark(numbers[0], 1, len(TEXT.encode())),
        ]
        assert newest_labels(session, project, limit=2) == marks[:2]
        assert load_labelled(session, numbers[:1]) == [
            LabelledText(numbers[0], "0", TEXT, tuple(TextSpan(*each) for each in SPANS))
        ]


@pytest.mark.parametrize(
    "told",
    [
        pytest.param({"blind": True}, id="drawn blind"),
        pytest.param({"blind": True, "stream": "audit"}, id="audit"),
        pytest.param({"stream": "audit"}, id="audit that says it is not blind"),
        pytest.param({"blind": True, "stream": None}, id="blind without a stream"),
        pytest.param({"deleted": True}, id="deleted"),
        pytest.param({"exclusion": "accepted"}, id="accepted unopened"),
        pytest.param({"exclusion": "bulk"}, id="a bulk copy"),
        pytest.param({"text": None}, id="text removed"),
        pytest.param({"spans": None}, id="no label"),
    ],
)
def test_what_may_not_be_suggested_is_never_read(store: Store, project: int, told: dict[str, Any]) -> None:
    row = {"text": TEXT, "spans": SPANS} | told
    hidden = insert_label(store, project, "1", row.pop("text"), row.pop("spans"), **row)
    shown = insert_label(store, project, "2", TEXT, SPANS, stream=None, blind=None)  # nothing was ever drawn
    with store.read() as session:
        assert [each.id for each in newest_labels(session, project, limit=10)] == [shown]
        assert [each.id for each in load_labelled(session, [hidden, shown])] == [shown]


def test_a_task_that_is_drawn_blind_later_is_not_read_any_more(store: Store, project: int) -> None:
    number = insert_label(store, project, "1", TEXT, SPANS, stream=None, blind=None)
    with store.read() as session:
        assert newest_labels(session, project, limit=10)
    with store.write() as session:
        session.execute(sa.text("UPDATE tasks SET blind = :yes"), {"yes": True})
    with store.read() as session:
        assert newest_labels(session, project, limit=10) == []
        assert load_labelled(session, [number]) == []


def test_more_labels_than_a_statement_takes_are_read(store: Store, project: int) -> None:
    number = insert_label(store, project, "1", TEXT, SPANS)
    with store.read() as session:
        assert len(load_labelled(session, [*range(-2_000, 0), number])) == 1
