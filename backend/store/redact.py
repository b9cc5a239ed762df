"""Secrets out of payloads before they are stored; everything else stays as it was sent."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

from backend.errors import InvalidEvent

REDACTED = "[redacted]"

# Whole words inside a key: `token`, `access_token`, `task_data_password`, `X-Api-Key`, `Proxy-Authorization`.
_SECRET = re.compile(
    r"(^|[_-])(token|password|passwd|secret|authorization|cookie|credentials?)($|[_-])|api[_-]?key", re.IGNORECASE
)
# A person's own words may sit under any key: what was labelled is not searched for secrets.
_CONTENT = {("task", "data"), ("tasks", "data"), ("annotation", "result"), ("annotations", "result")}


def redact(payload: dict[str, Any]) -> dict[str, Any]:
    """Return a copy without the values of keys that name secrets; nulls stay null, so that "unset" can be seen.

    Works without recursion, because a payload may be nested more deeply than Python may recurse.

    >>> redact({"project": {"id": 1, "token": "s3cret", "task_data_password": None}})
    {'project': {'id': 1, 'token': '[redacted]', 'task_data_password': None}}
    """
    result: dict[str, Any] = {}
    pending: list[tuple[Any, Any, str]] = [(payload, result, "")]
    while pending:
        source, target, parent = pending.pop()
        items = source.items() if isinstance(source, dict) else enumerate(source)
        for key, value in items:
            copy: Any = value
            name = key if isinstance(key, str) else parent
            if isinstance(key, str) and _names_secret(key) and not (value is None or isinstance(value, bool)):
                copy = REDACTED
            elif isinstance(value, dict | list) and (parent, key) not in _CONTENT:
                copy = {} if isinstance(value, dict) else [None] * len(value)
                pending.append((value, copy, name))
            target[key] = copy
    return result


@lru_cache(maxsize=4096)
def _names_secret(key: str) -> bool:
    # The same few keys come again thousands of times in one delivery.
    return _SECRET.search(key) is not None


def dump_payload(payload: object) -> str:
    """Return the redacted payload as JSON in ASCII, which both databases keep character for character.

    Raises:
        InvalidEvent: when it is not an object, or is nested too deeply to be read again.
    """
    if not isinstance(payload, dict):
        raise InvalidEvent(f"expected a JSON object, got {type(payload).__name__}")
    try:
        return json.dumps(redact(payload))
    except RecursionError:
        raise InvalidEvent("expected a JSON object of bearable depth, got one nested too deeply") from None
