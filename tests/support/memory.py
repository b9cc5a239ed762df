"""A directory in memory for what the tests write.

SQLite flushes every transaction to the disk, milliseconds each. The tests kill processes, never the machine, so nothing
they show depends on the disk.
"""

from __future__ import annotations

import os
from pathlib import Path

_MEMORY = Path("/dev/shm")  # noqa: S108 - whoever writes there makes a directory of their own
_NEEDED = 4 * 2**30  # ten times what a run of all tests keeps there at once


def memory_directory() -> Path | None:
    """Return a directory in memory that has room for the tests, or None (a container often has 64 MB)."""
    if not _MEMORY.is_dir() or not os.access(_MEMORY, os.W_OK):
        return None
    room = os.statvfs(_MEMORY)
    return _MEMORY if room.f_bavail * room.f_frsize >= _NEEDED else None
