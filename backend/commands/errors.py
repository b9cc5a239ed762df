"""What a command does with the errors raised on purpose: one line on stderr, exit code 1, no traceback."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import click

from backend.errors import BackendError
from backend.tagger.errors import TaggerError
from conformal.errors import ConformalError

P = ParamSpec("P")
R = TypeVar("R")


def reported(function: Callable[P, R]) -> Callable[P, R]:
    """Turn the package's own errors into click's, whose message goes to stderr."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (BackendError, ConformalError, TaggerError) as error:
            raise click.ClickException(str(error)) from None

    return wrapper
