"""Label Studio: reachable, of a release that was tested, with a token that it accepts, and willing to call us."""

from __future__ import annotations

import base64
import binascii
import json
import re
from datetime import UTC, datetime
from typing import Any

import httpx

from backend.demo.install import LABEL_STUDIO_VERSION
from backend.doctor.findings import Finding, fail, ok, skipped, warn
from backend.errors import LabelStudioError
from backend.labelstudio.client import LabelStudio
from backend.labelstudio.transport import Transport
from backend.settings import Settings

LEGACY, PERSONAL, BEARER, UNKNOWN = "legacy token", "personal access token", "access token", "token of unknown kind"
NO_KEY = "no LABEL_STUDIO_API_KEY"
_TIMEOUT = httpx.Timeout(10.0, connect=5.0)
_NEW_TOKEN = "make a personal access token in Label Studio under Account & Settings, and set LABEL_STUDIO_API_KEY to it"  # noqa: S105
_ALLOW = (
    "start Label Studio with USE_DEFAULT_BANNED_SUBNETS=false and USER_ADDITIONAL_BANNED_SUBNETS=169.254.0.0/16 "
    "(ML_BLOCK_LOCAL_IP=false alone lets the backend through, but not its webhook)"
)


def check_server(settings: Settings) -> tuple[Finding, bool]:
    """Ask Label Studio for its release, without a token; also returns whether it is there."""
    url = settings.label_studio_url
    if url is None:
        return skipped("label-studio", "no LABEL_STUDIO_URL", "set LABEL_STUDIO_URL, or use --url"), False
    try:
        answer = httpx.get(f"{url.rstrip('/')}/api/version", timeout=_TIMEOUT)
        release = str(answer.json()["release"]) if answer.is_success else None
    except (httpx.UnsupportedProtocol, httpx.InvalidURL):
        remedy = "LABEL_STUDIO_URL begins with http:// or https://"
        return fail("label-studio", f"{url} is not the address of a server", remedy), False
    except httpx.HTTPError as error:
        remedy = "start Label Studio, or correct LABEL_STUDIO_URL: its address as seen from here"
        return fail("label-studio", f"{url} does not answer ({type(error).__name__})", remedy), False
    except (ValueError, KeyError, TypeError):
        release = None
    if release is None:
        remedy = "set LABEL_STUDIO_URL to the address of Label Studio itself, without a path below it"
        return fail("label-studio", f"what answers at {url} is not Label Studio", remedy), False
    if release != LABEL_STUDIO_VERSION:
        return warn(
            "label-studio",
            f"{url} runs Label Studio {release}; the tested version is {LABEL_STUDIO_VERSION}",
            f"use {LABEL_STUDIO_VERSION} if anything seems wrong",
        ), True
    return ok("label-studio", f"{url} runs Label Studio {release}, which is tested"), True


def check_token(settings: Settings, *, reachable: bool) -> tuple[Finding, LabelStudio | None]:
    """Look at the token and have it accepted; returns a client when it is."""
    if settings.label_studio_api_key is None:
        return skipped(
            "token",
            f"{NO_KEY}, so Label Studio cannot be asked: nothing is reconciled, and no prediction follows a refit",
            _NEW_TOKEN,
        ), None
    key = settings.label_studio_api_key.get_secret_value()
    kind, ends = token_kind(key)
    if kind == BEARER:
        return fail(
            "token", "an access token, which is valid for five minutes; the service needs a personal one", _NEW_TOKEN
        ), None
    if ends is not None and ends < datetime.now(UTC):
        return fail("token", f"a {kind} that expired on {ends:%Y-%m-%d %H:%M} UTC", _NEW_TOKEN), None
    if not reachable or settings.label_studio_url is None:
        return skipped("token", f"a {kind}; whether it is valid cannot be checked without Label Studio"), None
    client = LabelStudio(
        settings.label_studio_url, key, transport=Transport(settings.label_studio_url, key, attempts=2)
    )
    try:
        who = client.whoami()
    except LabelStudioError as error:
        client.close()
        if error.status == 401:
            also = " (or turn legacy tokens on under Organization)" if kind == LEGACY else ""
            return fail("token", f"Label Studio refuses this {kind}", _NEW_TOKEN + also), None
        return fail("token", str(error), "see Label Studio's log"), None
    until = "" if ends is None else f", valid until {ends:%Y-%m-%d}"
    return ok("token", f"a {kind} of {who.get('email') or who.get('username') or 'a user'}{until}"), client


def token_kind(key: str) -> tuple[str, datetime | None]:
    """Return which kind of token this is, and when it ends if it says so; nothing is verified here.

    >>> token_kind("0123456789abcdef0123456789abcdef01234567"), token_kind("secret")
    (('legacy token', None), ('token of unknown kind', None))
    """
    parts = key.strip().split(".")
    if len(parts) == 3:
        try:
            claims: Any = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
            ends = datetime.fromtimestamp(int(claims["exp"]), UTC) if "exp" in claims else None
            kind = BEARER if claims.get("token_type") == "access" else PERSONAL
        except (ValueError, binascii.Error, TypeError, AttributeError, OverflowError, OSError):
            return UNKNOWN, None
        return kind, ends
    return (LEGACY if re.fullmatch(r"[0-9a-f]{40}", key.strip()) else UNKNOWN), None


def check_address(client: LabelStudio, url: str) -> Finding:
    """Ask Label Studio whether it would call an address, for predictions and for events.

    Both requests have another field that is wrong, so nothing can be stored: 400 means that the address was accepted,
    403 that it is refused (a local or private network), 500 that its name is not known there.
    """
    hook = url.rstrip("/") + "/webhook"
    backend = _status(client, "/api/ml/", {"url": url, "timeout": "none"})
    events = _status(client, "/api/webhooks/", {"url": hook, "actions": ["NONE"]})
    refused = [name for name, status in (("predictions", backend), ("events", events)) if status == 403]
    if refused:
        return fail("address", f"Label Studio refuses to call {url} for {' and '.join(refused)}", _ALLOW)
    if 500 in {backend, events}:
        return fail(
            "address",
            f"Label Studio does not know the name in {url}",
            "give the address of the service as Label Studio's machine sees it: `surespan connect --backend-url`",
        )
    if {backend, events} != {400}:
        return warn("address", f"Label Studio answered {backend} and {events} when asked about {url}", "see its log")
    return ok("address", f"Label Studio's settings let it call {url} for predictions and for events")


def _status(client: LabelStudio, path: str, body: dict[str, Any]) -> int | None:
    try:
        client.http.call("POST", path, body=body)
    except LabelStudioError as error:
        return error.status
    return 200
