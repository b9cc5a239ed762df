"""What commands that talk to Label Studio share: the options that name the server, and a client for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

from backend.errors import InvalidSetting
from backend.labelstudio.client import LabelStudio
from backend.settings import Settings, load_settings

F = TypeVar("F", bound=Callable[..., object])

project_option = click.option(
    "--project", "number", type=click.IntRange(min=1), required=True, help="Number of the project in Label Studio."
)


def label_studio_options(function: F) -> F:
    """Add --url, --api-key and --json."""
    options = (
        click.option("--url", help="Address of Label Studio. [default: LABEL_STUDIO_URL]"),
        click.option("--api-key", help="Token; better given as LABEL_STUDIO_API_KEY, which other users cannot read."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and ask no questions."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def settings_for(url: str | None, api_key: str | None) -> Settings:
    """Return the settings, with Label Studio's address and token from the command line where they are given."""
    given = {"label_studio_url": url, "label_studio_api_key": api_key}
    return load_settings(**{name: value for name, value in given.items() if value is not None})


def client_for(settings: Settings) -> LabelStudio:
    """Return a client for the server that the settings name.

    Raises:
        InvalidSetting: when address or token are missing.
    """
    if settings.label_studio_url is None:
        raise InvalidSetting("LABEL_STUDIO_URL: expected the address of Label Studio, got none; or use --url")
    if settings.label_studio_api_key is None:
        raise InvalidSetting("LABEL_STUDIO_API_KEY: expected a token of Label Studio, got none: see Account & Settings")
    return LabelStudio(settings.label_studio_url, settings.label_studio_api_key.get_secret_value())


def silent(_text: str) -> None:
    """Say nothing: what is printed is for a program."""
