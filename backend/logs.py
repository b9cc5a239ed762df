"""Logs as JSON lines: one object a line, with the id of the request it belongs to.

Nothing that a task, a token or a password could be in is ever handed to a logger: messages are fixed words, and what
varies goes into named fields. Of an unexpected exception its type and place are logged, not its message, because a
library may have put a piece of the input into that.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, TextIO

request_id: ContextVar[str | None] = ContextVar("surespan_request_id", default=None)

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One JSON object per record: time, level, logger, message, request id, and the record's own fields.

    >>> record = logging.makeLogRecord({"msg": "model loaded", "levelname": "INFO", "name": "x", "seconds": 2})
    >>> fields = json.loads(JsonFormatter().format(record))
    >>> fields["message"], fields["seconds"], fields["level"]
    ('model loaded', 2, 'info')
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        current = request_id.get()
        if current is not None:
            fields["request_id"] = current
        fields |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info and record.exc_info[1] is not None:
            fields |= {"error": type(record.exc_info[1]).__name__, "stack": stack_of(record.exc_info[1])}
        return json.dumps(fields, default=str)


def stack_of(error: BaseException) -> list[str]:
    """Return where an exception came from, innermost last; its message is left out.

    >>> try:
    ...     raise ValueError("Bob lives in Paris")
    ... except ValueError as error:
    ...     ["Paris" in line for line in stack_of(error)]
    [False]
    """
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} {frame.name}" for frame in frames[-12:]]


def configure_logging(level: str, stream: TextIO | None = None) -> None:
    """Send the logs of this process to `stream` (stderr) as JSON lines."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)  # of libraries, only what is wrong
    logging.getLogger("backend").setLevel(level.upper())
    logging.getLogger("gunicorn").setLevel(level.upper())
