"""Real workers for the replay test, each a process of its own that may be killed at its n-th statement.

Started once; the model is loaded before the processes are made from this one, so that a kill costs no new start.
One JSON object a line comes in, with the workers to run at once; one goes out when all have ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from sqlalchemy import event

from backend.models.loading import ModelLoader
from backend.models.views import Views
from backend.settings import load_settings
from backend.store import Store
from backend.worker.worker import Worker


def work(loader: ModelLoader, url: str, name: str, kill_at: int | None, refit_every: int) -> None:
    settings = load_settings(database_url=url, refit_every_labels=refit_every, n_min=20, sync_every_minutes=0)
    with Store(url) as store:
        if kill_at is not None:
            left = [kill_at]

            def count(*_: Any) -> None:
                left[0] -= 1
                if left[0] <= 0:
                    os.kill(os.getpid(), signal.SIGKILL)

            event.listen(store.engine, "before_cursor_execute", count)
            event.listen(store.engine, "commit", count)
        Worker(settings, store, loader=loader, views=Views(settings, store, loader), name=name, takeover=True).drain()


def main() -> None:
    loader = ModelLoader(load_settings())
    loader.start()
    loader.tagger(300.0)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        children = []
        for order in json.loads(line):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    work(loader, **order)
                    code = 0
                finally:
                    os._exit(code)
            children.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        sys.stdout.write(json.dumps(codes) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
