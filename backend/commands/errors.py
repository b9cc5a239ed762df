"""What a command does with the errors raised on purpose: one line on stderr, exit code 1, no traceback."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import click

from backend.errors import BackendError
from backend.tagger.errors import TaggerError

P = ParamSpec("P")
R = TypeVar("R")


def reported(function: Callable[P, R]) -> Callable[P, R]:
    """Turn the package's own errors into click's, whose message goes to stderr."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        # Numba takes half a second to import, which the help of a command need not wait for.
        from conformal.errors import ConformalError

        try:
            return function(*args, **kwargs)
        except (BackendError, ConformalError, TaggerError) as error:
            raise click.ClickException(str(error)) from None

    return wrapper
