"""Short work goes before long work; long work goes on all the same. Counted in pieces, never in seconds."""

from __future__ import annotations

import threading

import pytest

from backend.domain import precedence
from backend.domain.precedence import LONG, PIECE, Precedence, in_pieces
from tests.support.waiting import WAIT, wait_for


def start_long(order: Precedence, pieces: int, done: list[int]) -> threading.Thread:
    """Work on a long text in another thread, so many pieces of it."""

    def work() -> None:
        with order.work(LONG + 1):
            for piece in range(pieces):
                order.pause()
                done.append(piece)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_long_text_waits_between_its_pieces_while_short_ones_are_worked_on() -> None:
    order = Precedence(patience=WAIT)
    done: list[int] = []
    with order.work(LONG):
        thread = start_long(order, 5, done)
        wait_for(lambda: order._changed._waiters, "the long work waits")  # type: ignore[attr-defined]
        with order.work(1):
            assert done == []
        assert done == [], "one of two short ones is under way still"
    thread.join(WAIT)
    assert done == [0, 1, 2, 3, 4]


def test_long_work_goes_on_however_much_short_work_there_is() -> None:
    order = Precedence(patience=0.001)
    done: list[int] = []
    with order.work(1):
        thread = start_long(order, 5, done)
        thread.join(WAIT)
        assert done == [0, 1, 2, 3, 4]


def test_only_long_work_pauses() -> None:
    order = Precedence(patience=WAIT)
    with order.work(1):  # would wait for itself
        order.pause()
        done: list[bool] = []
        other = threading.Thread(target=lambda: (order.pause(), done.append(True)))
        other.start()
        other.join(WAIT)
        assert done == [True], "who does no work on a text waits for none"
    with order.work(LONG + 1):
        order.pause()  # nothing short is under way
    with order.work(1):
        order.pause()  # what was long is over


def test_a_failure_ends_the_work_it_happened_in() -> None:
    order = Precedence(patience=WAIT)

    def fail(characters: int) -> None:
        with order.work(characters):
            raise ValueError("broken")

    for characters in (1, LONG + 1):
        with pytest.raises(ValueError, match="broken"):
            fail(characters)
    with order.work(LONG + 1):
        order.pause()


def test_there_is_a_pause_before_every_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[int] = []
    seen: list[int] = []
    monkeypatch.setattr(precedence.PROCESS, "pause", lambda: pauses.append(len(seen)))
    seen.extend(in_pieces(range(2 * PIECE + 1)))
    assert seen == list(range(2 * PIECE + 1))
    assert pauses == [0, PIECE, 2 * PIECE]
