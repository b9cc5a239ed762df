"""The environment variables under which Label Studio runs for us."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# What must not reach Label Studio from the environment of whoever starts it.
_OURS = ("SURESPAN_", "LABEL_STUDIO_", "BASIC_AUTH_", "DJANGO_", "PYTHON", "VIRTUAL_ENV", "PORT", "HOST")


@dataclass(frozen=True)
class Account:
    """Label Studio's first user; `token` is its legacy token."""

    username: str
    password: str
    token: str


def label_studio_variables(data: Path, *, base: Mapping[str, str], account: Account | None = None) -> dict[str, str]:
    """Return the environment of a Label Studio that keeps everything in `data` and tells nobody about it.

    Its defaults refuse a machine-learning backend on this machine; only the link-local range (cloud metadata) stays
    refused. A default installation refuses legacy tokens; ours takes both kinds.
    """
    kept = {name: value for name, value in base.items() if not name.startswith(_OURS)}
    variables = kept | {
        "LABEL_STUDIO_BASE_DATA_DIR": str(data),
        "LABEL_STUDIO_ENABLE_LEGACY_API_TOKEN": "true",
        "LABEL_STUDIO_DISABLE_SIGNUP_WITHOUT_LINK": "true",
        "COLLECT_ANALYTICS": "false",
        "LATEST_VERSION_CHECK": "false",
        "SENTRY_DSN": "",
        "FRONTEND_SENTRY_DSN": "",
        "USE_DEFAULT_BANNED_SUBNETS": "false",
        "USER_ADDITIONAL_BANNED_SUBNETS": "169.254.0.0/16",
    }
    if account is not None:
        variables["LABEL_STUDIO_USERNAME"] = account.username
        variables["LABEL_STUDIO_PASSWORD"] = account.password
        variables["LABEL_STUDIO_USER_TOKEN"] = account.token
    return variables
