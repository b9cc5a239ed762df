"""Turns are fair, answers are computed once, and too many at once are told so."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from backend.errors import BackendError, Overloaded, StoreUnavailable
from backend.models.gate import FairGate
from backend.models.polling import Polled
from backend.serving.admission import Admission
from backend.serving.cache import AnswerCache
from tests.support.waiting import WAIT, wait_for


def until(condition: Callable[[], bool]) -> None:
    """Wait for other threads to get somewhere."""
    wait_for(condition, "the other threads got there")


def test_keys_take_turns_however_many_wait() -> None:
    wanted = ["big"] * 5 + ["small"] * 2 + ["third"]
    assert turns(FairGate(slots=1), wanted) == ["big", "small", "third", "big", "small", "big", "big", "big"]


def test_an_urgent_key_waits_for_one_turn_of_another_at_most() -> None:
    wanted = ["a", "a", "b", "c", "now", "now"]
    assert turns(FairGate(slots=1, urgent="now"), wanted) == ["now", "a", "now", "b", "c", "a"]
    assert turns(FairGate(slots=1, urgent="now"), ["a", "b"]) == ["a", "b"]


def turns(gate: FairGate, wanted: list[str]) -> list[str]:
    """Return the order in which those who wait for a slot that is taken get it."""
    order: list[str] = []
    begun, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with gate.turn("first"):
            begun.set()
            leave.wait(WAIT)

    def one(key: str) -> None:
        with gate.turn(key):
            order.append(key)

    threads = [threading.Thread(target=hold)]
    threads[0].start()
    assert begun.wait(WAIT)
    for i, key in enumerate(wanted):
        threads.append(threading.Thread(target=one, args=(key,)))
        threads[-1].start()
        until(lambda i=i: gate.waiting == i + 1)  # type: ignore[misc]
    leave.set()
    for thread in threads:
        thread.join(WAIT)
    return order


def test_what_the_database_says_is_asked_again_and_survives_its_absence() -> None:
    asked: list[int | None] = []
    away = False

    def ask(key: str, before: int | None) -> int:
        if away:
            raise StoreUnavailable("gone")
        asked.append(before)
        return len(asked) if key == "a" else 0

    polled: Polled[str, int] = Polled(ask, every=1000.0)
    assert [polled.get("a"), polled.get("a"), polled.get("b")] == [1, 1, 0]
    polled.forget("a")
    assert (polled.get("a"), asked) == (3, [None, None, None])
    polled.every = 0.0
    polled.forget("a")
    assert polled.get("a") == 4
    assert (polled.get("a"), asked[-1]) == (5, 4)  # due at once, and told what it was
    away = True
    assert polled.get("a") == 5
    assert polled.get("c") is None
    away = False
    assert polled.get("a") == 5  # a database that was away is left alone for a while


def test_a_gate_never_lets_more_in_than_it_has_slots() -> None:
    gate = FairGate(slots=3)
    lock = threading.Lock()
    inside, most, done = 0, 0, 0

    def work(key: str) -> None:
        nonlocal inside, most, done
        for _ in range(50):
            with gate.turn(key):
                with lock:
                    inside += 1
                    most = max(most, inside)
                with lock:
                    inside -= 1
                    done += 1

    threads = [threading.Thread(target=work, args=(str(i % 4),)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert done == 600
    assert most <= 3
    assert gate.waiting == 0


def test_a_turn_is_given_back_when_work_fails() -> None:
    gate = FairGate(slots=1)

    def fail() -> None:
        with gate.turn("a"):
            raise BackendError("broken")

    for _ in range(3):
        with pytest.raises(BackendError):
            fail()
    with gate.turn("b"):
        assert gate.waiting == 0


def test_an_answer_is_computed_once_and_shared() -> None:
    cache: AnswerCache[str, int] = AnswerCache(10)
    first = cache.claim(["a", "b", "a"])
    assert first.mine == ["a", "b"]
    second = cache.claim(["a", "c"])
    assert second.mine == ["c"]
    assert list(second.others) == ["a"]
    cache.keep("a", 1)
    assert second.others["a"].result(timeout=0) == 1
    assert cache.claim(["a"]).found == {"a": 1}
    cache.give_up(["b"], BackendError("no"))
    assert cache.claim(["b"]).mine == ["b"]  # a failure is not kept


def test_those_who_wait_hear_of_a_failure() -> None:
    cache: AnswerCache[str, int] = AnswerCache(10)
    cache.claim(["a"])
    waiting = cache.claim(["a"]).others["a"]
    cache.give_up(["a"], BackendError("no"))
    with pytest.raises(BackendError):
        waiting.result(timeout=0)


def test_the_cache_is_bounded_by_number_and_by_weight() -> None:
    by_number: AnswerCache[int, int] = AnswerCache(3)
    for i in range(4):
        by_number.keep(i, i)
        if i == 2:
            by_number.claim([0])  # used again, so not the next to go
    assert by_number.claim([0, 1, 2, 3]).found == {0: 0, 2: 2, 3: 3}
    by_weight: AnswerCache[int, int] = AnswerCache(100, weight=10, weigh=lambda value: value)
    for i in range(5):
        by_weight.keep(i, 4)
    assert len(by_weight) == 2
    by_weight.keep(9, 50)  # larger than the whole cache: kept alone, for the moment
    assert by_weight.claim([9]).found == {9: 50}
    assert len(by_weight) == 1


def test_a_cache_of_no_size_still_shares_what_is_under_way() -> None:
    cache: AnswerCache[str, int] = AnswerCache(0)
    cache.claim(["a"])
    shared = cache.claim(["a"]).others["a"]
    cache.keep("a", 1)
    assert shared.result(timeout=0) == 1
    assert cache.claim(["a"]).mine == ["a"]


def test_beyond_the_waiting_room_one_is_told_at_once() -> None:
    admission = Admission(1, waiting=1)
    admission.acquire()
    inside = threading.Event()

    def wait() -> None:
        with admission.enter():
            inside.set()

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: admission._seats._value == 0)
    with pytest.raises(Overloaded, match="at most 2 predictions"):
        admission.acquire()
    assert not inside.is_set()
    admission.release()
    thread.join(WAIT)
    assert inside.is_set()
    admission.acquire()
    admission.release()
