"""`surespan ...` as a process that kills itself, and whatever it has started, at a named stage of acceptance.

    python -m tests.support.mortal sent:400 worker     # dies by SIGKILL after the server's 400th answer
    python -m tests.support.mortal never serve         # lives on

A killed worker's job is taken over after seconds instead of two minutes; nothing else differs from the real command.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import backend.acceptance.jobs as accepting
import backend.acceptance.withdrawal as withdrawing
import backend.worker.worker as working
from backend.acceptance.sending import Sender
from backend.cli import main
from backend.labelstudio.client import LabelStudio

LEASE = timedelta(seconds=20)


def die() -> None:
    """End this process and those it belongs with as a power cut would."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


def dying_after(work: Callable[..., Any], *, at: int = 1, when: Callable[[Any], bool] = lambda _: True) -> Any:
    """Return `work` that is followed by death: at the n-th call whose answer is of this kind."""
    left = [at]

    def mortal(*arguments: Any, **options: Any) -> Any:
        answer = work(*arguments, **options)
        if when(answer):
            left[0] -= 1
            if left[0] <= 0:
                die()
        return answer

    return mortal


def prepare(stage: str) -> None:
    """Make this process die at a stage."""
    name, _, count = stage.partition(":")
    at = int(count or 1)
    decide = accepting._Acceptance._decide
    if name == "decided":
        accepting._Acceptance._decide = dying_after(decide)  # type: ignore[method-assign]
    elif name == "planned":
        accepting.plan = dying_after(accepting.plan)
    elif name == "sent":
        LabelStudio.create_annotation = dying_after(LabelStudio.create_annotation, at=at)  # type: ignore[method-assign]
    elif name == "all-sent":
        Sender.send_page = dying_after(Sender.send_page, when=lambda more: not more)  # type: ignore[method-assign]
    elif name == "marked":
        withdrawing.accepted_page = dying_after(withdrawing.accepted_page)  # after the mark
    elif name == "deleted":
        LabelStudio.delete_annotation = dying_after(LabelStudio.delete_annotation, at=at)  # type: ignore[method-assign]
    elif name == "alarmed":
        working.Monitor.watch = dying_after(  # type: ignore[method-assign]
            working.Monitor.watch, when=lambda watched: any(each.startswith("drift:") for each in watched.alarms)
        )
    elif name != "never":
        raise SystemExit(f"expected a stage, got {stage}")
    working.JOB_LEASE = LEASE


if __name__ == "__main__":
    prepare(sys.argv[1])
    main(sys.argv[2:])
