"""A short text never waits for the passes of a long one, and long ones take turns pass by pass."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from backend.domain.precedence import LONG, PROCESS
from backend.tagger import network_tagger
from backend.tagger.loading import load_tagger
from backend.tagger.passes import Passes, Turnstile
from tests.support.waiting import WAIT, wait_for

DOCUMENT = "Anna Berg kam nach Wien. " * 60
SHORT = "Jonas kam nach Linz."


def test_turns_come_in_the_order_in_which_they_were_asked_for() -> None:
    turnstile = Turnstile(1)
    order: list[str] = []

    def run(name: str) -> None:
        with turnstile.turn():
            order.append(name)

    threads = [threading.Thread(target=run, args=(name,)) for name in "abc"]
    with turnstile.turn():
        for count, thread in enumerate(threads, start=1):
            thread.start()
            wait_for(lambda count=count: turnstile.waiting == count, "it waits")  # type: ignore[misc]
    with turnstile.turn():
        order.append("again")
    for thread in threads:
        thread.join(WAIT)
    assert order == ["a", "b", "c", "again"]


def test_a_turn_is_given_back_when_the_pass_fails() -> None:
    passes = Passes(1)

    def fail(characters: int) -> None:
        with PROCESS.work(characters), passes.one():
            raise ValueError("broken")

    for characters in (1, 1, LONG + 1, LONG + 1):
        with pytest.raises(ValueError, match="broken"):
            fail(characters)
    assert (passes.short.waiting, passes.long.waiting) == (0, 0)


def test_short_texts_are_tagged_during_a_pass_of_a_long_one(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_tagger, "_BATCH_TOKENS", 24)  # sixty sentences are some fifteen passes
    tagger = load_tagger(tiny_model)
    expected = [tagger.potentials([text], languages=["de"])[0].potentials.emissions for text in (DOCUMENT, SHORT)]
    real = tagger._network.emissions
    passes: list[str] = []
    found: dict[str, Any] = {}

    def tag(name: str, text: str) -> None:
        # As long as it is said to be: what counts is how the work is announced.
        with PROCESS.work(LONG + 1 if text == DOCUMENT else len(text)):
            (found[name],) = tagger.potentials([text], languages=["de"])

    def run(words: list[str], lengths: Any) -> Any:
        name = threading.current_thread().name
        passes.append(name)
        if name == "first" and passes.count("first") == 1:
            other = threading.Thread(target=tag, args=("second", DOCUMENT), name="second")
            other.start()
            threads.append(other)
            wait_for(lambda: tagger._passes.long.waiting, "the other long text waits for a pass")
            short = threading.Thread(target=tag, args=("short", SHORT), name="short")
            short.start()
            short.join(WAIT)
            assert "short" in found, "it was tagged while a pass of a long text was under way"
        return real(words, lengths)

    monkeypatch.setattr(tagger, "_network", SimpleNamespace(emissions=run))
    threads = [threading.Thread(target=tag, args=("first", DOCUMENT), name="first")]
    threads[0].start()
    threads[0].join(WAIT)
    threads[1].join(WAIT)
    assert passes[:4] == ["first", "short", "second", "first"], "long texts take turns, pass by pass"
    assert passes.count("first") == passes.count("second") > 10
    for name, emissions in zip(("first", "second", "short"), (expected[0], *expected), strict=True):
        assert np.array_equal(found[name].potentials.emissions, emissions), "to the last bit"
