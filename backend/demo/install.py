"""Label Studio in an environment of its own: its dependencies and ours do not go together.

The environment is complete when a file in it says so, so an installation that was interrupted is done again. Making
Label Studio's database takes a minute, nearly all of a first start; so an empty one is made once and copied.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from backend.demo.errors import DemoError
from backend.demo.variables import label_studio_variables

LABEL_STUDIO_VERSION = "1.23.2"  # the version that everything here is tested against


def environment_of(version: str) -> Path:
    """Return where a version is installed, seen from the working directory."""
    return Path(".surespan") / f"label-studio-{version}"


ENVIRONMENT = environment_of(LABEL_STUDIO_VERSION)

DATABASE = "label_studio.sqlite3"

_COMPLETE = "installed.txt"

Say = Callable[[str], None]


def label_studio_command(environment: Path, version: str = LABEL_STUDIO_VERSION) -> tuple[str, ...] | None:
    """Return the command line of a complete installation, or None where there is none.

    It names the interpreter, so it works after the directory was moved and however long its path is.
    """
    stamp, script = environment / _COMPLETE, environment / "bin" / "label-studio"
    if stamp.is_file() and stamp.read_text(encoding="utf-8").strip() == version and script.is_file():
        return str(environment.absolute() / "bin" / "python"), str(script.absolute())
    return None


def empty_database(environment: Path) -> Path:
    """Return where an installation keeps its empty database."""
    return environment / "empty" / DATABASE


def install_label_studio(
    environment: Path, *, say: Say, progress: Say, version: str = LABEL_STUDIO_VERSION
) -> tuple[str, ...]:
    """Install Label Studio unless it is there; return its command line.

    `say` is called for the few lines worth keeping, `progress` for what changes every second. Two processes that ask
    at once do it once: the second waits.

    Raises:
        DemoError: when the environment cannot be made or the packages cannot be installed, with what pip said last.
    """
    command = label_studio_command(environment, version)
    if command is not None:
        return command
    environment.parent.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(environment.with_name(environment.name + ".lock")):
        command = label_studio_command(environment, version)  # another process may have done it meanwhile
        if command is not None:
            return command
        return _install(environment.absolute(), version, say=say, progress=progress)


def _install(environment: Path, version: str, *, say: Say, progress: Say) -> tuple[str, ...]:
    say(f"Installing Label Studio {version} into {_short(environment)}: about 1 GB, a few minutes. This happens once.")
    progress("making the environment")
    if environment.exists():
        shutil.rmtree(environment)
    _run(
        [sys.executable, "-m", "venv", str(environment)],
        progress=lambda _: None,
        failed="the virtual environment could not be made; on Debian: apt-get install python3-venv",
    )
    seen = 0

    def follow(line: str) -> None:
        nonlocal seen
        word, _, rest = line.strip().partition(" ")
        if word == "Collecting":
            seen += 1
            progress(f"package {seen}: {rest.split('<')[0].split('>')[0].split('=')[0].split(' ')[0]}")
        elif word == "Installing":
            progress(f"unpacking {seen} packages")

    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check"]
    _run(
        [*pip, "--progress-bar", "off", "--no-input", f"label-studio=={version}"],
        progress=follow,
        failed="Label Studio could not be installed; is a package index reachable, and is there 1 GB of space?",
    )
    _prepare_database(environment, progress=progress)
    (environment / _COMPLETE).write_text(version + "\n", encoding="utf-8")
    command = label_studio_command(environment, version)
    if command is None:
        raise DemoError(
            f"expected the command label-studio in {_short(environment)}, got none: remove it and try again"
        )
    return command


def _prepare_database(environment: Path, *, progress: Say) -> None:
    progress("making an empty database")
    data = empty_database(environment).parent
    data.mkdir()
    # `version` is the one command that makes the database and nothing else.
    _run(
        [str(environment / "bin" / "python"), str(environment / "bin" / "label-studio"), "version"],
        progress=lambda _: None,
        failed="Label Studio was installed but does not run",
        variables=label_studio_variables(data, base=os.environ),
    )


def _run(command: list[str], *, progress: Say, failed: str, variables: Mapping[str, str] | None = None) -> None:
    last: deque[str] = deque(maxlen=8)
    with subprocess.Popen(  # noqa: S603 - our own command line
        command,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        try:
            for line in process.stdout or ():
                if line.strip() and not line.startswith("WARNING: Location"):
                    last.append(line.rstrip())
                progress(line)
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise DemoError(f"{failed}\nIt said:\n  " + "\n  ".join(last))


@contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
