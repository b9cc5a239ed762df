from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import permutations
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.label_choice import choose_label
from backend.domain.records import AnnotationRecord, Draw, LabelRecord, TextSpan
from backend.errors import NotFound, StoreConflict
from backend.store import Store
from backend.store.labels import (
    current_label,
    delete_annotation,
    delete_tasks,
    label_history,
    list_labels,
    record_annotation,
    unscored_labels,
)
from backend.store.projects import (
    ensure_model,
    ensure_project,
    ensure_task,
    find_project,
    find_task,
    list_projects,
    load_tasks,
    set_project_alpha,
)
from backend.store.tables import Annotation, Label, LabelHistory, Task
from tests.support.store_workload import snapshot

PER = (TextSpan(0, 3, "PER"),)
LOC = (TextSpan(0, 3, "LOC"),)
ORG = (TextSpan(0, 3, "ORG"), TextSpan(4, 6, "ORG"))


def at(second: float) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


def says(annotation_id: int, second: float, spans: tuple[TextSpan, ...] = PER, **more: Any) -> AnnotationRecord:
    return AnnotationRecord(annotation_id, at(second), spans, **more)


def new_task(store: Store, external_id: str = "7", text: str = "Bob", **more: Any) -> int:
    with store.write() as session:
        project = ensure_project(session, "1.17")
        return ensure_task(session, project.id, external_id=external_id, text=text, **more).id


def record(store: Store, task_id: int, *annotations: AnnotationRecord) -> bool:
    changed = False
    for annotation in annotations:
        with store.write() as session:
            changes = record_annotation(session, task_id, annotation)
        changed = any(change.changed for change in changes)
    return changed


def label(store: Store, task_id: int) -> LabelRecord:
    with store.read() as session:
        found = current_label(session, task_id)
    assert found is not None
    return found


class TestPolicy:
    def test_ground_truth_wins_over_any_majority(self) -> None:
        votes = [says(1, 1, PER), says(2, 2, PER), says(3, 3, LOC, ground_truth=True)]
        assert choose_label(votes).spans == LOC

    def test_several_ground_truths_vote_among_themselves(self) -> None:
        truths = [says(i, i, spans, ground_truth=True) for i, spans in enumerate([LOC, PER, PER])]
        assert choose_label([*truths, says(9, 9, ORG)]).spans == PER

    def test_ties_go_to_the_lowest_annotation_id(self) -> None:
        choice = choose_label([says(5, 1, LOC), says(4, 9, PER)])
        assert (choice.spans, choice.votes, choice.voters) == (PER, 1, 2)

    def test_the_order_and_repetition_of_spans_is_no_disagreement(self) -> None:
        same = [says(1, 1, ORG), says(2, 1, ORG[::-1]), says(3, 1, ORG + ORG), says(0, 1, PER)]
        assert choose_label(same).votes == 3

    def test_skips_and_copies_do_not_vote(self) -> None:
        choice = choose_label([says(1, 1, LOC, was_cancelled=True), says(2, 1, LOC, bulk=True), says(3, 1, PER)])
        assert (choice.spans, choice.exclusion) == (PER, None)

    def test_nothing_but_copies_or_skips_is_no_evidence(self) -> None:
        copies = choose_label([says(1, 1, LOC, was_cancelled=True), says(2, 1, LOC, bulk=True)])
        assert (copies.spans, copies.exclusion) == (LOC, "bulk")
        skips = choose_label([says(1, 1, LOC, was_cancelled=True)])
        assert (skips.spans, skips.exclusion) == (None, "skipped")
        nothing = choose_label([])
        assert (nothing.spans, nothing.exclusion, nothing.annotation) == (None, "withdrawn", None)

    def test_an_empty_submission_is_a_labeling(self) -> None:
        choice = choose_label([says(1, 1, ())])
        assert (choice.spans, choice.exclusion) == ((), None)

    @given(
        st.lists(
            st.builds(
                AnnotationRecord,
                annotation_id=st.integers(1, 8),
                updated_at=st.just(at(0)),
                spans=st.sampled_from([PER, LOC, ORG, ()]),
                was_cancelled=st.booleans(),
                ground_truth=st.booleans(),
                bulk=st.booleans(),
            ),
            max_size=6,
            unique_by=lambda each: each.annotation_id,
        ),
        st.randoms(use_true_random=False),
    )
    def test_order_never_matters(self, annotations: list[AnnotationRecord], shuffler: random.Random) -> None:
        shuffled = list(annotations)
        shuffler.shuffle(shuffled)
        assert choose_label(annotations) == choose_label(shuffled)


def test_the_label_carries_its_provenance(store: Store) -> None:
    task = new_task(store)
    full = says(
        3,
        5,
        ORG,
        ground_truth=True,
        created_at=at(1),
        unique_id="u-1",
        parent_prediction=12,
        parent_annotation=2,
        origins={"prediction": 1, "manual": 1},
        lead_time=1.25,
        completed_by=4,
    )
    assert record(store, task, full)
    found = label(store, task)
    assert found.annotation == full
    assert (found.spans, found.exclusion, found.revision) == (ORG, None, 1)
    assert not record(store, task, full), "a repeated delivery changes nothing"
    assert label(store, task).revision == 1


def test_odd_characters_in_labels_survive(store: Store) -> None:
    task = new_task(store, text="a\x00b\ud800 🙂")
    spans = (TextSpan(0, 1, "P\x00\ud800é🙂"),)
    record(store, task, says(1, 1, spans))
    assert label(store, task).spans == spans
    with store.read() as session:
        assert load_tasks(session, [task])[task].text == "a\x00b\ud800 🙂"
        assert label_history(session, task)[0][3]["spans"] == [[0, 1, "P\x00\ud800é🙂"]]


def test_an_older_update_never_overwrites_a_newer(store: Store) -> None:
    task = new_task(store)
    record(store, task, says(1, 5, LOC), says(1, 3, PER))
    found = label(store, task)
    assert (found.spans, found.revision) == (LOC, 1)
    with store.read() as session:
        assert [entry[0] for entry in label_history(session, task)] == [at(3), at(5)]


def test_a_deletion_wins_over_what_is_older_whenever_that_arrives(store: Store) -> None:
    task = new_task(store)
    with store.write() as session:
        assert delete_annotation(session, 1, annotation_id=1, at=at(4)) == []
    record(store, task, says(1, 3, PER))
    assert (label(store, task).spans, label(store, task).exclusion) == (None, "withdrawn")
    record(store, task, says(1, 5, LOC))
    assert (label(store, task).spans, label(store, task).exclusion) == (LOC, None)
    with store.read() as session:
        history = label_history(session, task)
    assert [(entry[0], entry[1]) for entry in history] == [
        (at(3), "submitted"),
        (at(4), "deleted"),
        (at(5), "submitted"),
    ]


def test_deleting_keeps_what_happened(store: Store) -> None:
    task = new_task(store)
    record(store, task, says(1, 1, PER), says(2, 2, LOC))
    with store.write() as session:
        (change,) = delete_annotation(session, 1, annotation_id=1, at=at(9))
    assert change.changed
    assert label(store, task).spans == LOC
    with store.read() as session:
        assert len(label_history(session, task)) == 3
        assert session.execute(sa.select(sa.func.count()).select_from(Annotation)).scalar_one() == 2


@pytest.mark.parametrize("table", ["label_history"])
def test_history_cannot_be_rewritten(store: Store, table: str) -> None:
    record(store, new_task(store), says(1, 1))
    with pytest.raises(StoreConflict, match="never changed"), store.write() as session:
        session.execute(sa.text(f"UPDATE {table} SET kind = 'x'"))
    with store.read() as session:
        assert session.execute(sa.select(LabelHistory.kind)).scalar_one() == "submitted"


ORDERS = [
    pytest.param(("a1", "a2", "d1"), id="update-delete"),
    pytest.param(("a1", "d1", "r1"), id="reused-annotation-id"),
    pytest.param(("b1", "a2", "t"), id="task-deleted"),
    pytest.param(("a1", "t", "n1"), id="task-id-reused-same-text"),
    pytest.param(("a1", "m1", "d1"), id="annotation-id-moved-to-another-task"),
]


@pytest.mark.parametrize("names", ORDERS)
def test_every_order_of_deliveries_ends_alike(names: tuple[str, ...], url: str) -> None:
    """All permutations, each delivery twice: the end is that of the true order."""
    steps: dict[str, Any] = {
        "a1": ("annotate", "7", "Bob", 0, says(1, 1, PER)),
        "a2": ("annotate", "7", "Bob", 0, says(1, 3, LOC)),
        "b1": ("annotate", "7", "Bob", 0, says(2, 2, ORG)),
        "d1": ("delete", 1, 4),
        "r1": ("annotate", "7", "Bob", 0, says(1, 6, ORG, unique_id="second life")),
        "t": ("delete task", "7", 4),
        "n1": ("annotate", "7", "Bob", 5, says(1, 6, ORG)),
        "m1": ("annotate", "8", "Ann", 0, says(1, 3, ORG)),
    }
    ends = []
    with Store(url) as store:
        for order in permutations(names):
            with store.write() as session:
                for table in (LabelHistory, Label, Annotation, Task):
                    session.execute(sa.delete(table))
                session.execute(sa.text("DELETE FROM task_deletions"))
            for name in (*order, *order):
                play(store, steps[name])
            ends.append(snapshot(store))
    assert all(end == ends[0] for end in ends), names


def play(store: Store, step: Any) -> None:
    with store.write() as session:
        project = ensure_project(session, "1.17")
        if step[0] == "delete":
            delete_annotation(session, project.id, annotation_id=step[1], at=at(step[2]))
        elif step[0] == "delete task":
            delete_tasks(session, project.id, external_ids=[step[1]], at=at(step[2]))
        else:
            _, external_id, text, born, annotation = step
            task = ensure_task(session, project.id, external_id=external_id, text=text, created_at=at(born))
            record_annotation(session, task.id, annotation)


def test_a_recreated_task_does_not_inherit_labels(store: Store) -> None:
    old = new_task(store, text="Bob", created_at=at(0))
    record(store, old, says(1, 1, PER))
    with store.write() as session:
        delete_tasks(session, 1, external_ids=["7"], at=at(5))
        assert find_task(session, 1, external_id="7") is None
    assert label(store, old).exclusion == "withdrawn"
    other_text = new_task(store, text="Berlin", created_at=at(6))
    assert other_text != old
    with store.read() as session:
        assert current_label(session, other_text) is None
        found = find_task(session, 1, external_id="7")
        assert found is not None
        assert found.id == other_text
    same_text = new_task(store, text="Bob", created_at=at(7))
    with store.read() as session:
        again = current_label(session, same_text)
        assert again is not None
        assert (again.spans, again.exclusion) == (None, "withdrawn")
        assert not load_tasks(session, [same_text])[same_text].deleted
    record(store, same_text, says(1, 2, PER))
    assert label(store, same_text).spans is None, "late news about the deleted task"
    record(store, same_text, says(1, 8, LOC))
    assert label(store, same_text).spans == LOC


def test_a_deleted_task_stays_deleted_when_old_news_arrive(store: Store) -> None:
    new_task(store, created_at=at(0))
    with store.write() as session:
        delete_tasks(session, 1, external_ids=["7", "99"], at=at(5))
        delete_tasks(session, 1, external_ids=["7"], at=at(2))
    task = new_task(store, created_at=at(0))
    with store.read() as session:
        assert load_tasks(session, [task])[task].deleted
    unknown = new_task(store, external_id="99", created_at=at(1))
    with store.read() as session:
        assert load_tasks(session, [unknown])[unknown].deleted


def test_the_draw_is_written_once(store: Store) -> None:
    first, second = Draw("audit", 0.25, 0.1, blind=True), Draw("main", 0.5, 1.0, blind=False)
    task = new_task(store)
    for draw in (first, second):
        assert new_task(store, draw=draw) == task
    with store.read() as session:
        assert load_tasks(session, [task])[task].draw == first


def test_unknown_tasks_are_refused(store: Store) -> None:
    with store.write() as session, pytest.raises(NotFound, match="got 99"):
        record_annotation(session, 99, says(1, 1))


def test_projects_are_keyed_on_the_whole_uid(store: Store) -> None:
    with store.write() as session:
        old = ensure_project(session, "1.100", title="old")
        new = ensure_project(session, "1.200", label_config="<View/>")
        assert ensure_project(session, "1.100", title="older").id == old.id
        found = find_project(session, "1")
        assert found is not None
        assert found.id == new.id
        assert find_project(session, "1.100") == ensure_project(session, "1.100")
        assert find_project(session, "2") is None
        kept = set_project_alpha(session, new.id, alpha="0.1")
        assert (kept.alpha, kept.label_config) == ("0.1", "<View/>")
        with pytest.raises(NotFound):
            set_project_alpha(session, 99, alpha="0.1")
    with store.read() as session:
        assert [project.title for project in list_projects(session)] == ["older", ""]


def test_pages_of_labels(store: Store) -> None:
    tasks = [new_task(store, external_id=str(each), text=f"t{each}") for each in range(5)]
    for number, task in enumerate(tasks):
        record(store, task, says(number, 1))
    with store.write() as session:
        model = ensure_model(session, "m", "0" * 64, classes=["PER"])
        delete_annotation(session, 1, annotation_id=0, at=at(5))
        assert model.version == "m@00000000"
    with store.read() as session:
        page = list_labels(session, 1, limit=2)
        rest = list_labels(session, 1, after=page[-1].id)
        assert [each.task_id for each in page + rest] == tasks
        waiting = unscored_labels(session, 1, model_id=model.id)
        assert [each.task_id for each in waiting] == tasks[1:], "a withdrawn label has nothing to score"
