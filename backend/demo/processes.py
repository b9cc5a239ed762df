"""The servers of the demonstration as child processes: started, watched, stopped, never left behind."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from backend.demo.errors import DemoError

LOOPBACK = "127.0.0.1"
_GRACE = 20.0  # seconds between asking and forcing


class Child:
    """A server started by us, in a session of its own so that Ctrl-C reaches it through us and in order."""

    def __init__(
        self, name: str, command: Sequence[str], *, url: str, log: Path, environment: Mapping[str, str], directory: Path
    ) -> None:
        self.name, self.url, self.log = name, url, log
        # The guard asks the kernel to end the child when we are killed: nothing is left behind even then.
        guarded = [sys.executable, "-I", str(Path(__file__).with_name("guard.py")), str(os.getpid()), *command]
        with log.open("ab") as stream:
            self.process = subprocess.Popen(  # noqa: S603 - our own command line
                guarded,
                env=dict(environment),
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def wait_until_up(self, seconds: float, *, progress: Callable[[str], None] = lambda _: None) -> None:
        """Wait until `/health` answers.

        Raises:
            DemoError: when the process ends or does not answer in time, with the end of its log.
        """
        begin = time.monotonic()
        while (passed := time.monotonic() - begin) < seconds:
            self.check()
            if answers(f"{self.url}/health"):
                return
            progress(f"{passed:.0f} s")
            time.sleep(0.2)
        raise DemoError(f"{self.name} did not answer at {self.url} within {seconds:.0f} s.{self._tail()}")

    def check(self) -> None:
        """Make sure that it runs.

        Raises:
            DemoError: when it has ended, with the end of its log.
        """
        if not self.alive:
            raise DemoError(f"{self.name} has ended (exit code {self.process.returncode}).{self._tail()}")

    def stop(self, grace: float = _GRACE) -> int:
        """Ask it to stop, force it after `grace` seconds; return its exit code."""
        if self.alive:
            self.process.terminate()
            try:
                self.process.wait(timeout=grace)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.wait()

    def _tail(self) -> str:
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-12:]
        except OSError:
            return ""
        return f"\nThe end of its log ({self.log}):\n  " + "\n  ".join(lines)


def answers(url: str, *, timeout: float = 2.0) -> bool:
    """Return whether a GET of this address succeeds."""
    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:  # noqa: S310 - our own loopback address
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError, ValueError):
        return False


def free_port() -> int:
    """Return a port that nobody listens on at this moment.

    None of those that systems give to outgoing connections: it is still free after whoever listens was stopped.
    """
    for port in random.sample(range(20_000, 32_000), 200):
        if is_free(port):
            return port
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def is_free(port: int) -> bool:
    """Return whether nobody listens on a port of this machine."""
    for family, address in ((socket.AF_INET, LOOPBACK), (socket.AF_INET, "0.0.0.0")):  # noqa: S104 - tried, not served
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError:
                return False
    return True
