"""Buildah without a daemon: images and containers in a store of their own, processes by `chroot`.

With `--isolation chroot` a command sees the image's files, user, variables and directory, and the volumes it is given.
It shares the machine's network and processes, and nobody limits its memory or watches its health, as an engine does.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_STOP_SECONDS = 60.0


class CheckError(Exception):
    """Something is not as the Dockerfile or docker-compose.yml promises, or could not be made."""


class Store:
    """A directory with images and working containers, apart from those of the machine's own engine."""

    def __init__(self, place: Path) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self.place = place
        self._command = (
            "buildah", "--root", str(place / "storage"), "--runroot", str(place / "run"), "--storage-driver", "vfs"
        )  # fmt: skip

    def command(self, *arguments: str) -> list[str]:
        """Return a command line of buildah on this store."""
        return [*self._command, *arguments]

    def call(self, *arguments: str, log: Path | None = None) -> str:
        """Run buildah and return what it printed.

        Raises:
            CheckError: when it fails, with the end of what it said.
        """
        done = subprocess.run(self.command(*arguments), check=False, text=True, capture_output=True)
        if log is not None:
            log.write_text(done.stdout + done.stderr, encoding="utf-8")
        if done.returncode:
            end = "\n  ".join((done.stdout + done.stderr).splitlines()[-12:])
            raise CheckError(f"buildah {arguments[0]} ended with {done.returncode}; it said last:\n  {end}")
        return done.stdout.strip()

    def has(self, image: str) -> bool:
        """Return whether an image of this name is there."""
        command = self.command("images", "--quiet", "--filter", f"reference={image}")
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        return done.returncode == 0 and bool(done.stdout.strip())

    def config(self, image: str) -> dict[str, Any]:
        """Return what an image says of itself: user, variables, entrypoint, command, health check."""
        return dict(json.loads(self.call("inspect", "--type", "image", image))["Docker"]["config"])

    def remove_containers(self) -> None:
        """Remove all working containers, also those of a run that was interrupted."""
        self.call("rm", "--all")


class Container:
    """A working container of an image; its processes are those of this machine."""

    def __init__(
        self,
        store: Store,
        image: str,
        *,
        variables: Mapping[str, str] | None = None,
        volumes: Sequence[tuple[Path, str]] = (),
        hosts: Sequence[str] = (),
    ) -> None:
        self._store = store
        added = [word for host in hosts for word in ("--add-host", f"{host}:127.0.0.1")]
        self.name = store.call("from", "--pull-never", *added, image)
        given = [word for name, value in (variables or {}).items() for word in ("--env", f"{name}={value}")]
        bound = [word for place, target in volumes for word in ("--volume", f"{place}:{target}:rw")]
        self._options = ["run", "--isolation", "chroot", *given, *bound]

    def command(self, words: Sequence[str], *, user: str | None = None) -> list[str]:
        """Return the command line that runs `words` inside, as the image's user unless another one is named."""
        as_user = [] if user is None else ["--user", user]
        return self._store.command(*self._options, *as_user, self.name, "--", *words)

    def run(self, words: Sequence[str], *, user: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        # What a command says as it ends is lost now and then: buildah has stopped listening.
        patient = ["sh", "-c", '"$@"; code=$?; sleep 0.3; exit $code', "sh", *words]
        return subprocess.run(self.command(patient, user=user), check=False, capture_output=True, text=True)

    def output(self, words: Sequence[str], *, user: str | None = None) -> str:
        """Run a command and return what it printed.

        Raises:
            CheckError: when it fails.
        """
        done = self.run(words, user=user)
        if done.returncode:
            said = "\n  ".join((done.stdout + done.stderr).splitlines()[-12:])
            raise CheckError(f"{shlex.join(words)} ended with {done.returncode}:\n  {said}")
        return done.stdout.strip()

    def remove(self) -> None:
        """Remove it with all that was written outside volumes."""
        self._store.call("rm", self.name)


class Process:
    """A command that goes on running: stopped by SIGTERM to the process inside, as an engine does."""

    def __init__(
        self, name: str, command: Sequence[str], *, log: Path, variables: Mapping[str, str] | None = None
    ) -> None:
        self.name, self.log = name, log
        with log.open("ab") as stream:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=None if variables is None else dict(variables),
                start_new_session=True,
            )

    def check(self) -> None:
        """Make sure that it runs.

        Raises:
            CheckError: when it has ended, with the end of its log.
        """
        if self._process.poll() is not None:
            end = "\n  ".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-12:])
            raise CheckError(f"{self.name} has ended with {self._process.returncode}; its log ends:\n  {end}")

    def inner(self) -> int:
        """Return the first process that is no longer buildah's own: what an engine would call process 1.

        Raises:
            CheckError: when there is none.
        """
        pid = self._process.pid
        while _is_buildah(pid):
            children = [
                child
                for thread in Path(f"/proc/{pid}/task").iterdir()
                for child in (thread / "children").read_text(encoding="ascii").split()
            ]
            if not children:
                raise CheckError(f"{self.name}: no process runs inside")
            pid = int(children[0])
        return pid

    def owner(self) -> int:
        """Return the user id under which it runs."""
        return Path(f"/proc/{self.inner()}").stat().st_uid

    def stop(self) -> int:
        """Ask it to stop and return its exit code; it is forced after a minute."""
        if self._process.poll() is None:
            try:
                os.kill(self.inner(), signal.SIGTERM)
                self._process.wait(_STOP_SECONDS)
            except (OSError, CheckError, subprocess.TimeoutExpired):
                os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait()


def _is_buildah(pid: int) -> bool:
    program = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
    return Path(program.decode()).name.startswith("buildah")


def wait_until_healthy(container: Container, process: Process, test: Sequence[str], *, seconds: float) -> str:
    """Run a health check of docker-compose.yml until it passes; return what it said last.

    Raises:
        CheckError: when the process ends, or the check does not pass in time.
    """
    words = list(test[1:])  # "CMD" comes first
    begin = time.monotonic()
    while True:
        process.check()
        done = container.run(words)
        said = (done.stdout + done.stderr).strip()
        if done.returncode == 0:
            return said
        if time.monotonic() - begin > seconds:
            raise CheckError(f"{process.name} was not healthy within {seconds:.0f} s: {said}")
        time.sleep(1.0)
