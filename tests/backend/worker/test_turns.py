from __future__ import annotations

from backend.calibration.score_labels import BEGINNING, Cursor
from backend.worker.turns import MANY, Share, Turns


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_every_project_gets_its_turn_and_a_turn_ends() -> None:
    clock = Clock()
    turns = Turns(clock=clock, labels=3, seconds=5.0)
    for task in range(10):
        turns.note(1, task)
    turns.note(2, 20)
    first, second = turns.round()
    assert (first.project_id, first.tasks, first.most) == (1, [0, 1, 2], 3)
    assert (second.project_id, second.tasks) == (2, [20])
    turns.begin(first)
    assert not first.is_over()
    clock.now = 4.9
    assert not first.is_over()
    clock.now = 5.0
    assert first.is_over()
    turns.begin(second)
    assert not second.is_over(), "its own seconds begin with its own turn"
    turns.end(first, left=None)
    turns.end(second, left=None)
    assert [(share.project_id, share.tasks) for share in turns.round()] == [(1, [3, 4, 5])]


def test_what_a_turn_had_no_time_for_stays_noted() -> None:
    turns = Turns(labels=2)
    for task in (10, 11, 12):
        turns.note(1, task)
    (share,) = turns.round()
    turns.end(share, left=Cursor(7))
    (again,) = turns.round()
    assert again.tasks == [10, 11]
    assert again.begin == BEGINNING, "labels that have their row by now are not found again"


def test_single_labels_come_before_the_rest_of_their_project() -> None:
    turns = Turns()
    turns.note_all(1)
    turns.note(1, 10)
    (share,) = turns.round()
    assert share.tasks == [10]
    turns.end(share, left=None)
    (share,) = turns.round()
    assert share.tasks is None
    turns.end(share, left=Cursor(300))
    turns.note_all(1)
    (share,) = turns.round()
    assert (share.tasks, share.begin) == (None, Cursor(300)), "a walk that is under way is gone on with"
    turns.end(share, left=None)
    assert not turns


def test_the_one_that_has_more_to_do_goes_last() -> None:
    turns = Turns(labels=1)
    for project in (1, 2, 3):
        turns.note(project, 5)
        turns.note(project, 6)
    order = []

    def serve(share: Share) -> None:
        order.append(share.project_id)
        turns.end(share, left=None)

    serve(turns.round()[0])
    serve(turns.round()[0])
    serve(turns.round()[0])
    serve(turns.round()[0])
    assert order == [1, 2, 3, 1]


def test_many_tasks_are_the_whole_project() -> None:
    turns = Turns()
    for task in range(MANY + 1):
        turns.note(1, task)
    (share,) = turns.round()
    assert share.tasks is None
    turns.drop(share)
    assert not turns


def test_a_task_that_is_noted_during_its_turn_stays_noted() -> None:
    turns = Turns(labels=2)
    for task in (10, 11):
        turns.note(1, task)
    (share,) = turns.round()
    turns.begin(share)
    turns.note(1, 11)  # by another thread: its label has changed
    turns.end(share, left=None)
    assert [again.tasks for again in turns.round()] == [[11]]
