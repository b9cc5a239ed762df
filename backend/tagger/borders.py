"""Calls into libraries that may panic: what they throw stays here, and one odd text stops nothing else.

A panic of a Rust library arrives as a `BaseException`, which `except Exception` lets through: it would end the request
with all its tasks, or the worker's process. Here it becomes an ordinary value or an ordinary error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from backend.domain.text import text_hash

_log = logging.getLogger(__name__)
T = TypeVar("T")
_OURS = (KeyboardInterrupt, SystemExit, GeneratorExit)  # meant for the whole process, not thrown by a library


def name_of(text: str) -> str:
    """Return how logs and messages name a text without repeating it: the beginning of the hash that tasks are kept by.

    >>> name_of("Anna")
    'bf4fccd61625'
    """
    return text_hash(text).hex()[:12]


def or_instead(call: Callable[[], T], *, instead: T, library: str, text: str) -> T:
    """Return what the call returns, or `instead` where it throws anything; that is logged with the text's name."""
    try:
        return call()
    except _OURS:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever a library throws
        _log.warning(
            "a library failed on a text, which is read without it",
            extra={"library": library, "text": name_of(text), "reason": type(error).__name__},
        )
        return instead
