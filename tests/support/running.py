"""The real service: `surespan serve` as a process on a free loopback port."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT
from tests.support.waiting import WAIT


class Running:
    """A service process."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process, self.port, self.log = process, port, log

    def call(self, path: str, body: Any = None, *, timeout: float = WAIT) -> tuple[int, Any]:
        """Call a route; returns status and JSON."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data=data, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def wait_until_up(self) -> Any:
        """Return the first answer of /health."""
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise AssertionError(self.log.read_text())
            try:
                return self.call("/health")[1]
            except OSError:
                time.sleep(0.05)
        raise AssertionError("the service did not come up: " + self.log.read_text())

    def stop(self) -> int:
        """Ask it to stop and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=WAIT)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(directory: Path, model: Path, **more: str) -> dict[str, str]:
    """Return the environment of a service that keeps everything in a directory."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SURESPAN_", "BASIC_AUTH_"))}
    return kept | {
        "SURESPAN_DATABASE_URL": f"sqlite:///{directory / 'served.db'}",
        "SURESPAN_MODEL": str(model),
        "SURESPAN_N_MIN": "20",
        "SURESPAN_ALPHA": "0.1",
        "OMP_NUM_THREADS": "1",
        "SURESPAN_LEARN": "off",  # see tests/conftest.py
        "SURESPAN_WORKER": "false",  # what the service does by itself; the worker has tests of its own
        "PYTHONPATH": str(ROOT),
        **more,
    }


@contextmanager
def running(directory: Path, model: Path, **more: str) -> Iterator[Running]:
    """Run the service; it is ended on leaving, by force if need be."""
    port, log = free_port(), directory / "serve.log"
    command = [sys.executable, "-m", "backend", "serve", "--port", str(port)]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, env=environment(directory, model, **more), cwd=directory, stdout=stream, stderr=stream
        )
    try:
        yield Running(process, port, log)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout=WAIT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
