"""A script: become another program, one that ends when the process that started it ends."""

import ctypes
import os
import signal
import sys

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux's prctl


def guard(parent: int, command: list[str]) -> None:
    """Replace this process by the command, unless the parent has gone meanwhile.

    Only Linux has the promise; elsewhere the parent must end its children itself, which it does unless it is killed.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_DIE_WITH_PARENT, signal.SIGTERM)
        if os.getppid() != parent:
            return
    os.execvp(command[0], command)  # noqa: S606 - the command line of whoever starts this


if __name__ == "__main__":
    guard(int(sys.argv[1]), sys.argv[2:])
