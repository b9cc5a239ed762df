"""An output file that survives a kill: lines are appended and synced batch by batch, and the file is named at the end.

Beside the output lie `<output>.part`, the lines so far, and `<output>.run.json`, which says what they were made from.
A run goes on only where both agree with what is asked for now. When all lines are there the output is put in place in
one step and the part is gone; the other file stays and lets a repeated command see that nothing is left to do.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Self

from backend.errors import InvalidInput


class Journal:
    """The lines of an output file, in order. `open` it, `append` what is missing, `finish` it.

    Args:
        output: gets one JSON list if it is called `.json`, one object a line otherwise.
        about: everything that decides what the lines say; told when it differs from an earlier run's.
    """

    def __init__(self, output: Path, about: Mapping[str, Any]) -> None:
        self.output, self._about = output, dict(about)
        self._part = output.with_name(f"{output.name}.part")
        self._notes = output.with_name(f"{output.name}.run.json")
        self._stream: BinaryIO | None = None
        self.done = 0
        self.complete = False

    def open(self) -> Self:
        """Find out what is there, and go on behind the last whole line.

        Raises:
            InvalidInput: when it was made from something else, another run is at it, or it cannot be written.
        """
        try:
            self._open()
        except InvalidInput:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise InvalidInput(f"expected to write {self.output}, got {error.strerror or error}") from None
        return self

    def _open(self) -> None:
        known = self._known()
        if self.output.exists():
            if known is None or not known.get("complete"):
                raise InvalidInput(
                    f"expected {self.output} not to exist, got a file that this command did not finish: remove it or "
                    "choose another name"
                )
            self._refuse_other(known)
            self.complete, self.done = True, int(known["lines"])
            self._part.unlink(missing_ok=True)  # killed between the last two steps of `finish`
            return
        stream = self._part.open("a+b")
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.close()
            raise InvalidInput(
                f"expected to be alone, got another run that writes {self.output}: wait for it"
            ) from None
        self._stream = stream
        if known is not None and not known.get("complete"):
            self._refuse_other(known)
            self.done = _repair(stream)
        else:
            stream.truncate(0)
            _write_whole(self._notes, self._about)
            _sync_directory(self.output.parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the part; another run may go on with it."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def append(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Add lines; they are on disk when this returns."""
        stream = self._opened()
        try:
            stream.write(b"".join(json.dumps(each).encode() + b"\n" for each in lines))
            stream.flush()
            os.fsync(stream.fileno())
        except OSError as error:
            raise InvalidInput(f"expected to write {self._part}, got {error.strerror or error}") from None
        self.done += len(lines)

    def finish(self) -> None:
        """Put the output in place, in one step."""
        stream = self._opened()
        notes = self._about | {"complete": True, "lines": self.done}
        if self.output.name.lower().endswith(".json"):
            partial = self.output.with_name(f".{self.output.name}.partial")
            with partial.open("wb") as whole:
                stream.seek(0)
                whole.write(b"[")
                for number, line in enumerate(stream):
                    whole.write((b",\n" if number else b"\n") + line.rstrip(b"\n"))
                whole.write(b"\n]\n")
                whole.flush()
                os.fsync(whole.fileno())
            _write_whole(self._notes, notes)
            partial.replace(self.output)
            self._part.unlink()
        else:
            _write_whole(self._notes, notes)
            self._part.replace(self.output)
        _sync_directory(self.output.parent)
        self.complete = True

    def _opened(self) -> BinaryIO:
        assert self._stream is not None, "open it first"  # noqa: S101 - a mistake of ours, not of a user
        return self._stream

    def _known(self) -> dict[str, Any] | None:
        try:
            known = json.loads(self._notes.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            known = None
        if not isinstance(known, dict):
            raise InvalidInput(f"expected {self._notes} to be written by this command, got something else: remove it")
        if known.get("complete") and not self.output.exists() and self._part.exists():
            return known | {"complete": False}  # killed between the two steps of `finish`: all lines are there
        return known

    def _refuse_other(self, known: Mapping[str, Any]) -> None:
        for name, wanted in self._about.items():
            if known.get(name) != wanted:
                raise InvalidInput(
                    f"expected {self.output} to go on as it was begun, with {name} {known.get(name)!r}, "
                    f"got {wanted!r}: choose another --output, or remove {self.output.name}* to start afresh"
                )


def _repair(stream: BinaryIO) -> int:
    """Cut off what is behind the last whole line; return how many lines there are."""
    stream.seek(0)
    good = count = 0
    for line in stream:
        if not line.endswith(b"\n"):
            break
        try:
            json.loads(line)
        except ValueError:
            break  # the machine went down before it was all on disk
        good += len(line)
        count += 1
    stream.truncate(good)
    stream.seek(0, os.SEEK_END)
    return count


def _write_whole(path: Path, content: Mapping[str, Any]) -> None:
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as stream:
        stream.write(json.dumps(content, indent=1).encode() + b"\n")
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(path)


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
