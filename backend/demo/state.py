"""What the demonstration remembers from one start to the next: one file, readable by its owner only."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from backend.demo.errors import DemoError
from backend.demo.variables import Account

DIRECTORY = Path(".surespan") / "demo"
USERNAME = "demo@example.com"
_FILE, _LOCK = "demo.json", "demo.lock"


@dataclass(frozen=True)
class DemoState:
    """Names, secrets and the numbers of the sample projects (None before they were made)."""

    username: str
    password: str
    token: str
    service_user: str
    service_password: str
    webhook_secret: str
    project: int | None = None
    kitchen: int | None = None

    @property
    def account(self) -> Account:
        """Label Studio's user."""
        return Account(self.username, self.password, self.token)


def load_state(directory: Path) -> DemoState:
    """Return what an earlier start left, or a new state with new secrets, written down.

    Raises:
        DemoError: when the file cannot be read.
    """
    path = directory / _FILE
    if not path.exists():
        state = DemoState(
            username=USERNAME,
            password=secrets.token_urlsafe(9),
            token=secrets.token_hex(20),
            service_user="surespan",
            service_password=secrets.token_urlsafe(18),
            webhook_secret=secrets.token_urlsafe(18),
        )
        return save_state(directory, state)
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return DemoState(**found)
    except (ValueError, TypeError, OSError):
        raise DemoError(f"expected the demo's own notes in {path}, got something else: start with --reset") from None


def save_state(directory: Path, state: DemoState) -> DemoState:
    """Write the state, all of it or nothing, and return it."""
    fresh = directory / (_FILE + ".new")
    with open(fresh, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        json.dump(asdict(state), file, indent=1)
    fresh.replace(directory / _FILE)
    return state


@contextmanager
def sole_use(directory: Path, *, reset: bool) -> Iterator[None]:
    """Hold the directory for ourselves; with `reset`, empty it first.

    Raises:
        DemoError: when a demonstration runs in it already.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / _LOCK).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            raise DemoError(
                f"the demo is already running (process {holder}): use it, or stop it with Ctrl-C or `kill {holder}`"
            ) from None
        if reset:
            for entry in directory.iterdir():
                if entry.name == _LOCK:
                    continue
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield
