"""Processes of this machine: each loads the model once; those that die are replaced and their texts done again."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from typing import Self

from backend.errors import BackendError
from backend.preannotate.engine import Answers, Group, parts_of
from backend.preannotate.recipe import Recipe, predict_items
from backend.prediction.predictor import Predictor

_log = logging.getLogger(__name__)

MOST_DEATHS = 3  # in a row, with nothing finished in between
_AHEAD = 4  # parts that wait for each process
_MOST_GROUPS = 16  # groups read ahead, however small

_here: list[Predictor | Exception] = []  # what a process of the pool has loaded, or why it could not


class ProcessesDie(BackendError):
    """Processes were killed again and again before they finished anything."""


class LocalProcesses:
    """Predicts by `jobs` processes, started anew (spawn), so that nothing of this one is shared by accident."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs

    def run(self, recipe: Recipe, groups: Iterator[Group], *, own: Predictor) -> Iterator[Answers]:  # noqa: ARG002
        """Yield the answers of each group, in order.

        Raises:
            InvalidModel: when a process cannot load the model.
            ProcessesDie: when they are killed again and again, for want of memory most likely.
        """
        with _Pool(recipe, self._jobs) as pool:
            yield from _in_order(pool, groups)


def _in_order(pool: _Pool, groups: Iterator[Group]) -> Iterator[Answers]:
    waiting: deque[list[_Part]] = deque()

    def read_ahead() -> None:
        while len(waiting) < 2 or (pool.has_room and len(waiting) < _MOST_GROUPS):
            group = next(groups, None)
            if group is None:
                return
            waiting.append([pool.submit(part) for part in parts_of(group)])

    read_ahead()
    while waiting:
        answers: Answers = []
        for part in waiting.popleft():
            answers += pool.result(part)
        read_ahead()  # the processes have something to do while the caller stores this group
        yield answers


class _Part:
    """Texts that are predicted together, and their place in the pool."""

    def __init__(self, items: Group) -> None:
        self.items = items
        self.future: Future[Answers] | None = None


class _Pool:
    """An executor that is made anew when a process of it dies; what was not finished is submitted again."""

    def __init__(self, recipe: Recipe, jobs: int) -> None:
        self._recipe, self._jobs = recipe, jobs
        self._unfinished: dict[int, _Part] = {}
        self._executor = self._start()
        self._deaths = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)

    @property
    def has_room(self) -> bool:
        """Whether more may be submitted: memory is bounded by what waits."""
        open_parts = sum(part.future is not None and not part.future.done() for part in self._unfinished.values())
        return open_parts < _AHEAD * self._jobs and len(self._unfinished) < 4 * _AHEAD * self._jobs

    def submit(self, items: Group) -> _Part:
        part = _Part(items)
        self._unfinished[id(part)] = part
        try:
            part.future = self._executor.submit(_predict, items)
        except BrokenProcessPool:
            self._replace()
        return part

    def result(self, part: _Part) -> Answers:
        while True:
            assert part.future is not None  # noqa: S101 - set by submit and by _replace
            try:
                answers = part.future.result()
            except BrokenProcessPool:
                self._replace()
                continue
            self._deaths = 0
            del self._unfinished[id(part)]
            return answers

    def _start(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(self._jobs, get_context("spawn"), initializer=_load, initargs=(self._recipe,))

    def _replace(self) -> None:
        self._deaths += 1
        if self._deaths > MOST_DEATHS:
            raise ProcessesDie(
                f"expected processes that live, got {MOST_DEATHS + 1} killed in a row: is there memory for "
                f"{self._jobs} of them? Try fewer (--jobs); what was written is kept, and the same command continues"
            )
        _log.warning("a process was killed: it is replaced, and what it had at hand is done again")
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._executor = self._start()
        for part in self._unfinished.values():
            if part.future is None or _is_lost(part.future):
                part.future = self._executor.submit(_predict, part.items)


def _is_lost(future: Future[Answers]) -> bool:
    """Whether a future of a broken executor has no answer of its own; what it has is kept."""
    return not future.done() or future.cancelled() or isinstance(future.exception(), BrokenProcessPool)


def _load(recipe: Recipe) -> None:
    """Prepare a process of the pool."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the one that started us ends us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        _here.append(recipe.predictor())
    except Exception as error:  # noqa: BLE001 - told by the first prediction; here it would look like a death
        _here.append(error)


def _end_with_parent() -> None:
    """End this process when the one that started it is gone: it waits for work on a pipe that it holds open itself."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _predict(items: Group) -> Answers:
    predictor = _here[0]
    if isinstance(predictor, Exception):
        raise predictor
    return predict_items(predictor, items)
