"""The text behind a task's URL, from hosts that the operator has listed and from no other.

A listed host is looked up once, all its addresses are judged, and one of them is what is connected to: a name that
means another address a moment later leads nowhere. Redirects are not followed. A text is given a few seconds and as
many bytes as a text may have; a host that used up its seconds is left alone for a minute, so that its other tasks, and
those of everybody else, do not wait for it.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

from cachetools import TTLCache

from backend.labelstudio.payloads import Unpredictable

SECONDS = 10.0
REST = 60.0  # seconds for which a host that was too slow is not asked again
AT_ONCE = 8
_PIECE = 65_536


def allowed_hosts(setting: str) -> frozenset[str]:
    """Read SURESPAN_TASK_HOSTS.

    >>> sorted(allowed_hosts("Files.example.org, localhost:8080"))
    ['files.example.org', 'localhost:8080']
    """
    return frozenset(part.strip().lower() for part in setting.split(",") if part.strip())


def may_connect(host: str, address: str, *, private: bool) -> bool:
    """Whether an address may be connected to for a listed host.

    One of the machine itself or of a private network only where the operator says so, or listed the address itself
    (or localhost); a link-local one, where clouds keep credentials, never.

    >>> may_connect("files.example.org", "93.184.215.14", private=False)
    True
    >>> may_connect("files.example.org", "10.0.0.7", private=False), may_connect("10.0.0.7", "10.0.0.7", private=False)
    (False, True)
    >>> may_connect("169.254.169.254", "169.254.169.254", private=True)
    False
    """
    ip = ip_address(address.partition("%")[0])
    ip = getattr(ip, "ipv4_mapped", None) or ip
    if ip.is_link_local or ip.is_multicast or ip.is_unspecified:
        return False
    return ip.is_global or private or host in {"localhost", address}


class TextFetcher:
    """Fetches texts. Safe to share between threads."""

    def __init__(self, hosts: frozenset[str], *, private: bool, max_text: int, seconds: float = SECONDS) -> None:
        self._hosts, self._private = hosts, private
        self._max_text, self._seconds = max_text, seconds
        self._most = 4 * max_text + 3  # bytes: UTF-8 takes at most four for a character
        self._resting: TTLCache[str, bool] = TTLCache(1_000, REST)
        self._lock = threading.Lock()

    def fetch_all(self, urls: Iterable[str]) -> Mapping[str, str | Unpredictable]:
        """Fetch several texts, a few at once; never raises for one of them."""
        wanted = list(dict.fromkeys(urls))
        if not wanted:
            return {}
        with ThreadPoolExecutor(min(AT_ONCE, len(wanted)), thread_name_prefix="fetch") as pool:
            return dict(zip(wanted, pool.map(self.fetch, wanted), strict=True))

    def fetch(self, url: str) -> str | Unpredictable:
        """Fetch a text. A host is listed by its name, or by name and port for any port but the usual one."""
        try:
            parts = urlsplit(url.strip())
            port = parts.port
        except ValueError:
            return Unpredictable.URL
        host = (parts.hostname or "").lower()
        if parts.scheme not in {"http", "https"} or (host if port is None else f"{host}:{port}") not in self._hosts:
            return Unpredictable.URL
        with self._lock:
            if host in self._resting:
                return Unpredictable.FETCH_FAILED
        try:
            return self._ask(parts, host)
        except (OSError, http.client.HTTPException, UnicodeError, ValueError):
            return Unpredictable.FETCH_FAILED

    def _ask(self, parts: SplitResult, host: str) -> str | Unpredictable:
        secure = parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        addresses = {str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
        if not addresses or not all(may_connect(host, each, private=self._private) for each in addresses):
            return Unpredictable.PRIVATE
        connection = http.client.HTTPConnection(host, port, timeout=self._seconds)
        over = threading.Event()
        try:
            sock = socket.create_connection((min(addresses), port), timeout=self._seconds)
            connection.sock = sock

            def end() -> None:
                over.set()
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

            timer = threading.Timer(self._seconds, end)  # a byte now and then is no answer either
            timer.daemon = True
            timer.start()
            try:
                if secure:
                    connection.sock = ssl.create_default_context().wrap_socket(sock, server_hostname=host)
                body = self._read(connection, (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))
            except TimeoutError:
                over.set()
                raise
            finally:
                timer.cancel()
        finally:
            connection.close()
            if over.is_set():
                with self._lock:
                    self._resting[host] = True
        if over.is_set() or body is None:
            return Unpredictable.FETCH_FAILED
        if len(body) > self._most:
            return Unpredictable.TOO_LONG
        text = body.decode("utf-8-sig")  # as the editor reads it: always UTF-8, and without the mark in front
        return text if len(text) <= self._max_text else Unpredictable.TOO_LONG

    def _read(self, connection: http.client.HTTPConnection, target: str) -> bytes | None:
        """Return the body, or as much of it as shows that it is too long; None where the answer is no text."""
        connection.request("GET", target, headers={"Accept": "text/*", "Accept-Encoding": "identity"})
        answer = connection.getresponse()
        if answer.status != http.client.OK or not answer.headers.get_content_type().startswith("text/"):
            return None
        body = bytearray()
        while len(body) <= self._most and (piece := answer.read1(_PIECE)):
            body += piece
        return bytes(body)
