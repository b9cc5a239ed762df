"""The text behind a task's URL, from hosts that the operator has listed and from no other."""

from __future__ import annotations

import http.client
import ssl
from urllib.parse import urlsplit

from backend.labelstudio.payloads import Unpredictable

_TIMEOUT = 10.0


def allowed_hosts(setting: str) -> frozenset[str]:
    """Read SURESPAN_TASK_HOSTS.

    >>> sorted(allowed_hosts("Files.example.org, localhost:8080"))
    ['files.example.org', 'localhost:8080']
    """
    return frozenset(part.strip().lower() for part in setting.split(",") if part.strip())


def fetch_text(url: str, *, hosts: frozenset[str], max_text: int) -> str | Unpredictable:
    """Fetch a text. Redirects are not followed, because they could lead to a host that is not listed.

    A host is listed by its name, or by name and port for any port but the usual one.
    """
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        return Unpredictable.URL
    host = (parts.hostname or "").lower()
    if parts.scheme not in {"http", "https"} or (host if port is None else f"{host}:{port}") not in hosts:
        return Unpredictable.URL
    connection = (
        http.client.HTTPSConnection(host, port, timeout=_TIMEOUT, context=ssl.create_default_context())
        if parts.scheme == "https"
        else http.client.HTTPConnection(host, port, timeout=_TIMEOUT)
    )
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", target, headers={"Accept": "text/plain, */*;q=0.1"})
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            return Unpredictable.FETCH_FAILED
        body = answer.read(4 * max_text + 1)  # UTF-8 takes at most four bytes a character
        text = body.decode("utf-8")
    except (OSError, http.client.HTTPException, UnicodeError, ValueError):
        return Unpredictable.FETCH_FAILED
    finally:
        connection.close()
    return text if len(text) <= max_text else Unpredictable.TOO_LONG
