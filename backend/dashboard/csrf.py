"""Nobody else's page may make a reader's browser act: a token in a cookie and in the form, and the call's origin.

The cookie is SameSite=Strict, so another site's form does not carry it; the token in the form is unknown to that site;
and `Origin`, which pages cannot forge, must be this service. One of the three would do.
"""

from __future__ import annotations

import hmac
import re
import secrets
from urllib.parse import urlsplit

from flask import Response, g, request
from werkzeug.exceptions import Forbidden

COOKIE = "surespan_token"
FIELD = "token"
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")


def token() -> str:
    """Return the token of this browser, a new one if it has none."""
    known = getattr(g, "surespan_token", None)
    if known is None:
        sent = request.cookies.get(COOKIE, "")
        known = g.surespan_token = sent if _TOKEN.fullmatch(sent) else secrets.token_urlsafe(32)
    return str(known)


def keep(response: Response) -> Response:
    """Send the token's cookie with a page that holds a form."""
    known = getattr(g, "surespan_token", None)
    if known is not None and request.cookies.get(COOKIE) != known:
        response.set_cookie(
            COOKIE, known, path="/dashboard", httponly=True, samesite="Strict", secure=request.is_secure
        )
    return response


def check() -> None:
    """Refuse a call that a form of ours did not make.

    Raises:
        Forbidden: when the origin is another one, or the token of form and cookie are not the same.
    """
    origin, site = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site")
    try:
        ours = origin is not None and urlsplit(origin).netloc == request.host
    except ValueError:
        ours = False
    sent, held = request.form.get(FIELD, ""), request.cookies.get(COOKIE, "")
    same = bool(_TOKEN.fullmatch(held)) and hmac.compare_digest(sent.encode("utf-8", "replace"), held.encode())
    if not (ours and same and site in {None, "same-origin"}):
        raise Forbidden("the form is not one that this service gave out, or its cookie is gone: open the page again")
