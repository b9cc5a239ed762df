"""The running service, asked over HTTP: whether it answers, with its model, to the credentials of these settings."""

from __future__ import annotations

import httpx

from backend.doctor.findings import Finding, fail, ok, skipped, warn
from backend.labelstudio.payloads import SECRET_HEADER
from backend.settings import Settings

_TIMEOUT = httpx.Timeout(5.0, connect=3.0)
_RESTART = "give the service and this command the same environment, and restart the service"


def check_service(settings: Settings, url: str, *, wanted: bool) -> list[Finding]:
    """Ask the service at an address.

    Args:
        wanted: whether something needs it to run; otherwise its absence is only worth a word.
    """
    try:
        with httpx.Client(base_url=url, timeout=_TIMEOUT, trust_env=False) as client:
            health = client.get("/health")
            said = health.json() if health.is_success else None
            if not isinstance(said, dict) or "model" not in said:
                return [
                    fail(
                        "service",
                        f"{url}/health is answered by something that is not Surespan (status {health.status_code})",
                        "stop what is listening on that port, or choose another with PORT",
                    ),
                    skipped("credentials", "no Surespan service answers"),
                ]
            return [_state(url, str(said["model"])), _credentials(client, settings)]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        reason = f"{url} does not answer ({type(error).__name__})"
        remedy = "start `surespan serve`, or give its address with --service-url"
        missing = fail("service", reason, remedy) if wanted else warn("service", reason, remedy)
        return [missing, skipped("credentials", "the service does not answer")]


def _state(url: str, model: str) -> Finding:
    if model == "failed":
        return fail("service", f"{url} answers, but its model could not be loaded", "its log says why; see `model`")
    if model != "ready":
        return warn("service", f"{url} answers; its model is not loaded yet ({model})", "wait for it")
    return ok("service", f"{url} answers, with its model in memory")


def _credentials(client: httpx.Client, settings: Settings) -> Finding:
    user, password, secret = settings.basic_auth_user, settings.basic_auth_pass, settings.webhook_secret
    auth = None if user is None or password is None else httpx.BasicAuth(user, password.get_secret_value())
    status = client.get("/versions", auth=auth).status_code
    if status in {401, 403}:
        return fail(
            "credentials", "the service refuses BASIC_AUTH_USER and BASIC_AUTH_PASS as they are set here", _RESTART
        )
    # A list is no event: it is refused with 400 after the secret was accepted, and nothing is stored.
    headers = {} if secret is None else {SECRET_HEADER: secret.get_secret_value()}
    status = client.post("/webhook", json=[], headers=headers).status_code
    if status in {401, 403}:
        got = "SURESPAN_WEBHOOK_SECRET as it is set here" if secret else "events without a secret, and none is set here"
        return fail("credentials", f"/webhook of the service refuses {got}", _RESTART)
    return ok("credentials", "the service accepts the credentials and the webhook secret of these settings")
