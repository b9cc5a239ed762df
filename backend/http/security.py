"""Who may call what. Secrets are compared in constant time, and refusals do not say which part was wrong."""

from __future__ import annotations

import hmac
import ipaddress
import json
from dataclasses import dataclass
from urllib.parse import urlsplit

from flask import Flask, Response, request

from backend.errors import InvalidSetting
from backend.http.errors import problem
from backend.labelstudio.payloads import SECRET_HEADER, START_TRAINING
from backend.settings import Settings

OPEN_ROUTES = frozenset({"/health"})
WEBHOOK = "/webhook"
_FORM_TYPES = frozenset({"application/x-www-form-urlencoded", "multipart/form-data", "text/plain"})
_LOCAL_NAMES = frozenset({"localhost", "host.docker.internal"})

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}


@dataclass(frozen=True)
class Credentials:
    """What callers must send; None where nothing is asked for."""

    user: str | None
    password: str | None
    secret: str | None
    host: str | None

    @property
    def basic(self) -> bool:
        """Whether basic auth is asked for."""
        return self.user is not None


def read_credentials(settings: Settings) -> Credentials:
    """Return the credentials of the settings.

    Raises:
        InvalidSetting: when there is a user without a password, or the reverse.
    """
    password = None if settings.basic_auth_pass is None else settings.basic_auth_pass.get_secret_value()
    if (settings.basic_auth_user is None) != (password is None):
        missing = "BASIC_AUTH_USER" if settings.basic_auth_user is None else "BASIC_AUTH_PASS"
        raise InvalidSetting(f"{missing}: expected a value, because the other half of basic auth is set, got none")
    secret = None if settings.webhook_secret is None else settings.webhook_secret.get_secret_value()
    return Credentials(settings.basic_auth_user, password, secret, settings.host)


def bind_address(settings: Settings) -> str:
    """Return the address to listen on: loopback without credentials.

    Raises:
        InvalidSetting: when another one is asked for without credentials.
    """
    credentials = read_credentials(settings)
    host = settings.host or ("0.0.0.0" if credentials.basic else "127.0.0.1")  # noqa: S104 - asked for by credentials
    if not credentials.basic and not is_loopback(host):
        raise InvalidSetting(
            f"SURESPAN_HOST: expected a loopback address such as 127.0.0.1 without credentials, got {host!r}: "
            "set BASIC_AUTH_USER and BASIC_AUTH_PASS to listen elsewhere"
        )
    return host


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def register(app: Flask, settings: Settings) -> None:
    """Guard every route of the app, and put the security headers on every answer."""
    credentials = read_credentials(settings)

    @app.before_request
    def guard() -> Response | None:
        return _refusal(credentials)

    @app.after_request
    def headers(response: Response) -> Response:
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response


def _refusal(credentials: Credentials) -> Response | None:
    if request.path in OPEN_ROUTES:
        return None
    if request.path != WEBHOOK or credentials.secret is None:
        return _refusal_without_secret(credentials)
    # A browser remembers basic auth and sends it for any page; it never knows the secret.
    if _secret_is_right(credentials):
        return None
    # The button "Start Training" is no webhook of Label Studio, though it calls this address: it sends what it sends to
    # /predict, and no secret. It may do here what it may do at /train.
    if _refusal_without_secret(credentials) is None and _asks_for_training():
        return None
    return _unauthorized(webhook=True)


def _refusal_without_secret(credentials: Credentials) -> Response | None:
    form = _from_a_form() if request.path == WEBHOOK else None
    if credentials.basic:
        return _from_another_page() or form if _basic_is_right(credentials) else _unauthorized()
    return _from_elsewhere(credentials) or form


def _asks_for_training() -> bool:
    try:
        body = json.loads(request.get_data())
    except (ValueError, RecursionError):
        return False
    return isinstance(body, dict) and body.get("action") == START_TRAINING


def _secret_is_right(credentials: Credentials) -> bool:
    given = request.headers.get(SECRET_HEADER)
    return credentials.secret is not None and given is not None and _same(given, credentials.secret)


def _basic_is_right(credentials: Credentials) -> bool:
    given = request.authorization
    if credentials.user is None or credentials.password is None or given is None or given.type != "basic":
        return False
    # Both are always compared, so that the time says nothing about either.
    user, password = _same(given.username or "", credentials.user), _same(given.password or "", credentials.password)
    return user and password


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), wanted.encode("utf-8", "surrogatepass"))


def _unauthorized(*, webhook: bool = False) -> Response:
    hint = "send the user and password of BASIC_AUTH_USER and BASIC_AUTH_PASS"
    if webhook:
        hint = f"send {SECRET_HEADER} with the value of SURESPAN_WEBHOOK_SECRET; basic auth is not enough here"
    response = problem(401, "Unauthorized", expected="valid credentials", got="none, or wrong ones", hint=hint)
    response.headers["WWW-Authenticate"] = 'Basic realm="surespan"'
    return response


def _from_another_page() -> Response | None:
    """Refuse changes that a web page of another site makes a browser ask for, with credentials that it remembers.

    Label Studio and scripts send neither header.
    """
    fetched = request.headers.get("Sec-Fetch-Site", "none")
    if request.method in {"GET", "HEAD", "OPTIONS"} or (not _is_foreign() and fetched in {"same-origin", "none"}):
        return None
    return problem(
        403,
        "Forbidden",
        expected="a call of this service's own pages, or of a program",
        got="one that a page of another site made a browser send",
        hint="behind a proxy, pass the Host header on as it came",
    )


def _from_a_form() -> Response | None:
    """Refuse what an HTML form can send from any page, whatever headers the browser adds or leaves out."""
    if request.mimetype not in _FORM_TYPES:
        return None
    return problem(
        415,
        "Unsupported Media Type",
        expected="Content-Type: application/json",
        got=f"{request.mimetype}, which a form of any web page can send",
        hint="Label Studio sends application/json; so should a program",
    )


def _is_foreign() -> bool:
    origin = request.headers.get("Origin")
    try:
        return origin is not None and urlsplit(origin).netloc != request.host
    except ValueError:
        return True


def _from_elsewhere(credentials: Credentials) -> Response | None:
    """Refuse what a web page of another site could make a browser send to a service without credentials."""
    foreign = _is_foreign()
    try:
        host = urlsplit(f"//{request.host}").hostname or ""
    except ValueError:
        host, foreign = "", True
    if not foreign and (is_loopback(host) or host in _LOCAL_NAMES or host == (credentials.host or "").lower()):
        return None
    return problem(
        403,
        "Forbidden",
        expected="a call to this machine's own address, because no credentials are set",
        got="another host or origin",
        hint="set BASIC_AUTH_USER and BASIC_AUTH_PASS",
    )
