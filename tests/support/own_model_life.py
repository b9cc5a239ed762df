"""A project gets two models and goes back to the first; as a program it forks a child for each life to be killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import event as sa_event

from backend.calibration.promotion import promote
from backend.models import stored
from backend.settings import load_settings
from backend.store import Store
from backend.store.project_models import register_model
from backend.store.projects import ensure_project
from backend.tagger.model_files import read_header

UID = "7.1"


def live(url: str, models: str, first: str, later: str, kill_at: int | None) -> None:
    """Store, register and promote both, the later one by its path, then go back; die before step `kill_at`."""
    settings = load_settings(database_url=url, model_dir=models)
    store = Store(url)
    steps = _Steps(kill_at)
    sa_event.listen(store.engine, "before_cursor_execute", steps)
    sa_event.listen(store.engine, "commit", steps)
    Path.rename = steps.before(Path.rename)  # type: ignore[method-assign, assignment]
    shutil.copyfile = steps.before(shutil.copyfile)  # type: ignore[assignment]
    with store.write() as session:
        project = ensure_project(session, UID)
    hashes = []
    for directory, largest in ((first, stored.LARGEST), (later, 0)):
        with store.write() as session:
            digest = stored.keep_model(session, directory, settings=settings, largest=largest)
        header = read_header(directory)
        assert header is not None
        with store.write() as session:
            register_model(
                session,
                project.id,
                model_hash=digest,
                name=header.name,
                classes=header.classes,
                base="nothing",
                labels=20,
                asked_by="ann",
            )
        with store.write() as session:
            promote(session, project, digest, settings=settings, who="ann", why="next")
        hashes.append(digest)
    with store.write() as session:
        promote(session, project, hashes[0], settings=settings, who="ann", why="back")


class _Steps:
    """Counts statements, commits and changes of files, and kills the process before one of them."""

    def __init__(self, kill_at: int | None) -> None:
        self._kill_at, self._count = kill_at, 0

    def __call__(self, *_: Any) -> None:
        self._count += 1
        if self._count == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            self()
            return change(*arguments)

        return counted


def main() -> None:
    """Fork a child for each line of standard input; answer with how it ended."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                live(**json.loads(line))
                code = 0
            except Exception:  # noqa: BLE001 - the test sees the code only; why must be seen as well
                traceback.print_exc()
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
