"""The text behind a task's URL, from hosts that the operator has listed and from no other.

A listed host is looked up once, all its addresses are judged, and only they are connected to: a name that means another
address a moment later leads nowhere. Redirects are not followed. A text is given a few seconds, from the look-up to its
last byte, and as many bytes as a text may have; a host that used up its seconds is left alone for a minute, so that its
other tasks, and those of everybody else, do not wait for it.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import SplitResult, urlsplit

from cachetools import TTLCache

from backend.labelstudio.payloads import Unpredictable

SECONDS = 10.0
REST = 60.0  # seconds for which a host that was too slow is not asked again
AT_ONCE = 8
_PIECE = 65_536
_USUAL = {"http": 80, "https": 443}
_CARRIERS = tuple(map(ip_network, ("64:ff9b::/96", "::/96")))  # IPv6 networks whose addresses end with one of IPv4


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
    >>> [may_connect("a.example", each, private=True) for each in ("169.254.169.254", "64:ff9b::a9fe:a9fe", "::")]
    [False, False, False]
    """
    ip = _meant(ip_address(address.partition("%")[0]))
    if ip.is_link_local or ip.is_multicast or ip.is_unspecified:
        return False
    return ip.is_global or private or host in {"localhost", address}


def _meant(ip: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the address of IPv4 that one of IPv6 stands for, if it does."""
    if isinstance(ip, IPv4Address):
        return ip
    if any(ip in carrier for carrier in _CARRIERS) and int(ip) > 1:  # :: and ::1 are themselves
        return IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip.ipv4_mapped or ip.sixtofour or ip


class TextFetcher:
    """Fetches texts. Safe to share between threads."""

    def __init__(self, hosts: frozenset[str], *, private: bool, max_text: int, seconds: float = SECONDS) -> None:
        self._hosts, self._private = hosts, private
        self._max_text, self._seconds = max_text, seconds
        self._most = 4 * max_text + 3  # bytes: UTF-8 takes at most four for a character
        self._resting: TTLCache[str, bool] = TTLCache(1_000, REST)
        self._lock = threading.Lock()

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        """Certificates take long to read: once will do."""
        return ssl.create_default_context()

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
        if parts.scheme not in _USUAL or (host if port is None else f"{host}:{port}") not in self._hosts:
            return Unpredictable.URL
        with self._lock:
            if host in self._resting:
                return Unpredictable.FETCH_FAILED
        end = time.monotonic() + self._seconds
        try:
            return self._ask(parts, host, end)
        except (OSError, http.client.HTTPException, UnicodeError, ValueError):
            return Unpredictable.FETCH_FAILED
        finally:
            if time.monotonic() >= end:
                with self._lock:
                    self._resting[host] = True

    def _ask(self, parts: SplitResult, host: str, end: float) -> str | Unpredictable:
        usual = _USUAL[parts.scheme]
        port = parts.port or usual
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(each[4][0]) for each in found))  # in the order in which to try them
        if not addresses or not all(may_connect(host, each, private=self._private) for each in addresses):
            return Unpredictable.PRIVATE
        connection = http.client.HTTPConnection(host, port)
        connection.default_port = usual  # which is not said to the server; a signed address may hold its name alone
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        with _connect(addresses, port, end) as sock, sock.dup() as same:
            timer = threading.Timer(max(0.0, end - time.monotonic()), _cut_off, (same,))
            timer.daemon = True
            timer.start()  # a byte now and then is no answer either
            try:
                connection.sock = sock
                if parts.scheme == "https":
                    connection.sock = self._tls.wrap_socket(sock, server_hostname=host)
                body = self._read(connection, target)
            finally:
                timer.cancel()
                timer.join()  # it must not cut off whatever has this number next
                connection.close()
        if body is None or time.monotonic() >= end:
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
        if answer.length and len(body) <= self._most:
            return None  # it ended before the length that it had promised: a part is not the text
        return bytes(body)


def _connect(addresses: Sequence[str], port: int, end: float) -> socket.socket:
    """Connect to the first address that can be reached in time."""
    failure: OSError = TimeoutError()
    for i, address in enumerate(addresses):
        left = end - time.monotonic()
        if left <= 0.0:
            break
        try:
            sock = socket.create_connection((address, port), timeout=left / (len(addresses) - i))
        except OSError as error:
            failure = error
            continue
        sock.settimeout(max(0.001, end - time.monotonic()))
        return sock
    raise failure


def _cut_off(sock: socket.socket) -> None:
    """End a connection, whoever waits for it; by a second handle, because TLS takes the first one for itself."""
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
