"""HTTP to a Label Studio server: tokens of both kinds, timeouts, bounded retries, errors in words.

A legacy token is sent as it is. A personal access token is a refresh token: it is exchanged for a bearer that lives
300 s, and exchanged again shortly before that or when the server says 401. Calls that change nothing when repeated are
tried again when the connection fails or the server answers 5xx; a call that creates something is tried again only when
no connection was made at all. No message carries a token or a task's text.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Self

import httpx

from backend.errors import LabelStudioError

TIMEOUT = httpx.Timeout(60.0, connect=5.0)
BULK_TIMEOUT = httpx.Timeout(300.0, connect=5.0)
ATTEMPTS = 4
_PAUSE = 0.5  # seconds before the second try; doubled for each further one
_BEARER_SECONDS = 240.0  # of the 300 that Label Studio gives
_REPEATABLE = {"GET", "PUT", "PATCH", "DELETE"}
_AGAIN = {500, 502, 503, 504}
_TEXTS = ("/tasks", "/import", "/annotations", "/predictions")
_SAID = 300  # characters of the server's own explanation


def is_personal(api_key: str) -> bool:
    """Whether a token is a personal access token (a JSON web token) rather than a legacy one.

    >>> is_personal("eyJhbGciOi.eyJ0b2tlbl.c2lnbmF0dXJl"), is_personal("0123456789abcdef0123456789abcdef01234567")
    (True, False)
    """
    parts = api_key.split(".")
    return len(parts) == 3 and all(parts)


class Transport:
    """One server and one token. Safe to share between threads; `close` it."""

    def __init__(self, url: str, api_key: str, *, attempts: int = ATTEMPTS, pause: float = _PAUSE) -> None:
        self.url = url.rstrip("/")
        self._key = api_key.strip()
        self._personal = is_personal(self._key)
        self._attempts, self._pause = attempts, pause
        self._bearer: tuple[str, float] | None = None
        self._server_time: datetime | None = None
        self._client = httpx.Client(base_url=self.url, timeout=TIMEOUT, follow_redirects=False)

    @property
    def token_kind(self) -> str:
        """`legacy` or `personal`."""
        return "personal" if self._personal else "legacy"

    @property
    def server_time(self) -> datetime | None:
        """The server's clock at its last answer, in whole seconds and never ahead of it; None when it did not say."""
        return self._server_time

    def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: object = None,
        bulk: bool = False,
    ) -> Any:  # noqa: ANN401 - JSON
        """Make a call and return the JSON of its answer, None where there is none.

        Raises:
            LabelStudioError: with the status (None when no answer came), what was asked and what to do.
        """
        asked = f"{method} {path}"
        answer = self._send(method, path, params=params, body=body, bulk=bulk)
        if answer.status_code == 401 and self._personal:
            self._bearer = None  # it may have been revoked before its time
            answer = self._send(method, path, params=params, body=body, bulk=bulk)
        if answer.is_success:
            if not answer.content:
                return None
            try:
                return answer.json()
            except ValueError:
                raise LabelStudioError(
                    f"{asked}: expected JSON from {self.url}, got something else: is LABEL_STUDIO_URL the address of "
                    "Label Studio itself?",
                    status=answer.status_code,
                    asked=asked,
                ) from None
        raise self._refusal(asked, answer)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(
        self, method: str, path: str, *, params: Mapping[str, Any] | None, body: object, bulk: bool
    ) -> httpx.Response:
        return self._try(
            method,
            path,
            headers={"Authorization": self._authorization()},
            params=params,
            body=body,
            timeout=BULK_TIMEOUT if bulk else TIMEOUT,
            repeatable=method in _REPEATABLE,
        )

    def _authorization(self) -> str:
        if not self._personal:
            return f"Token {self._key}"
        if self._bearer is None or time.monotonic() - self._bearer[1] > _BEARER_SECONDS:
            at = time.monotonic()
            path = "/api/token/refresh/"
            answer = self._try(
                "POST", path, headers={}, params=None, body={"refresh": self._key}, timeout=TIMEOUT, repeatable=True
            )
            if not answer.is_success:
                raise self._refusal(f"POST {path}", answer)
            try:
                self._bearer = (str(answer.json()["access"]), at)
            except (ValueError, KeyError, TypeError):
                raise LabelStudioError(
                    f"POST {path}: expected a bearer from {self.url}, got something else: is LABEL_STUDIO_URL the "
                    "address of Label Studio itself?",
                    status=answer.status_code,
                    asked=f"POST {path}",
                ) from None
        return f"Bearer {self._bearer[0]}"

    def _try(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        params: Mapping[str, Any] | None,
        body: object,
        timeout: httpx.Timeout,
        repeatable: bool,
    ) -> httpx.Response:
        for attempt in range(1, self._attempts + 1):
            last = attempt == self._attempts
            try:
                answer = self._client.request(method, path, headers=headers, params=params, json=body, timeout=timeout)
            except (httpx.TransportError, httpx.InvalidURL) as error:
                never_sent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
                hopeless = isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL)
                if last or hopeless or not (repeatable or never_sent):
                    raise self._unreachable(f"{method} {path}", error) from None
            else:
                self._server_time = _date(answer)
                if last or not repeatable or answer.status_code not in _AGAIN:
                    return answer
            time.sleep(self._pause * 2 ** (attempt - 1))
        raise AssertionError("unreachable")  # the last attempt returns or raises

    def _unreachable(self, asked: str, error: Exception) -> LabelStudioError:
        if isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL):
            remedy = "expected LABEL_STUDIO_URL to begin with http:// or https://"
        elif isinstance(error, httpx.TimeoutException):
            remedy = "expected an answer in time; is the server overloaded, or is a firewall between?"
        else:
            remedy = "check that Label Studio runs and that LABEL_STUDIO_URL is its address as seen from here"
        return LabelStudioError(
            f"{asked}: no answer from {self.url} ({type(error).__name__}): {remedy}", status=None, asked=asked
        )

    def _refusal(self, asked: str, answer: httpx.Response) -> LabelStudioError:
        status = answer.status_code
        if status == 401:
            kind = "personal access token" if self._personal else "legacy token"
            other = (
                "make a new one under Account & Settings"
                if self._personal
                else "the server may have legacy tokens turned off (a default installation has): make a personal "
                "access token under Account & Settings, or turn legacy tokens on under Organization"
            )
            text = f"expected a valid LABEL_STUDIO_API_KEY, got a {kind} that {self.url} refuses: {other}"
        elif status == 403:
            text = (
                f"expected to be allowed, got 403 from {self.url}: use the token of someone who may change the project"
            )
        elif status == 404:
            text = f"expected it to exist on {self.url}, got 404: check the project's number and LABEL_STUDIO_URL"
        else:
            # What the server says about tasks, annotations and predictions may repeat their text.
            said = "" if any(part in asked for part in _TEXTS) else f": {explanation(answer)}"
            text = f"expected {self.url} to accept this, got {status}{said}"
        return LabelStudioError(f"{asked}: {text}", status=status, asked=asked)


def explanation(answer: httpx.Response) -> str:
    """Return the server's own words about a refusal, shortened."""
    try:
        body = answer.json()
    except ValueError:
        return "no explanation"
    if not isinstance(body, dict):
        return "no explanation"
    errors = body.get("validation_errors")
    if isinstance(errors, dict):
        said = "; ".join(
            f"{key}: {' '.join(str(each) for each in value) if isinstance(value, list) else value}"
            for key, value in errors.items()
        )
        return said[:_SAID]
    return str(body.get("detail", "no explanation"))[:_SAID]


def _date(answer: httpx.Response) -> datetime | None:
    try:
        return parsedate_to_datetime(answer.headers["date"]).astimezone(UTC)
    except (KeyError, ValueError):
        return None
