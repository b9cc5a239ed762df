"""Every setting, its default and its check: one class, read from the environment.

Names that the Label Studio ecosystem knows are kept; ours start with `SURESPAN_`. A bad value is refused at start with
its name, what was expected and what was got; secrets and passwords are never repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from backend.errors import InvalidSetting
from backend.store.engine import database_url

PREFIX = "SURESPAN_"
_SECRET = ("DATABASE_URL", "SECRET", "API_KEY", "PASS")


def _decimal(value: str) -> str:
    # A decimal string, because Fraction(0.18) is not 18/100 and gives wrong ranks (METHODS 3.1).
    try:
        number = Decimal(value)
    except InvalidOperation:
        number = Decimal(0)
    if not (number.is_finite() and 0 < number < 1):
        raise ValueError("a decimal number between 0 and 1, both excluded, for example 0.05")
    return value


def _usable_url(value: str) -> str:
    try:
        database_url(value)
    except InvalidSetting as error:
        raise ValueError(str(error).split("expected ", 1)[-1].split(", got")[0]) from None
    return value


def _level(value: str) -> str:
    if value.lower() not in {"debug", "info", "warning", "error"}:
        raise ValueError("debug, info, warning or error")
    return value.lower()


def _empty_is_unset(value: object) -> object:
    return None if value == "" else value


def _known_as(*names: str) -> Any:  # noqa: ANN401 - what Field takes
    """Names that the Label Studio ecosystem knows, then ours; the first one that is set wins."""
    return AliasChoices(*names)


Optional = Annotated[str | None, BeforeValidator(_empty_is_unset)]
Secret = Annotated[SecretStr | None, BeforeValidator(_empty_is_unset)]
Days = Annotated[Annotated[int, Field(ge=1, le=36500)] | None, BeforeValidator(_empty_is_unset)]


class Settings(BaseSettings):
    """The settings, with their environment variables as aliases.

    >>> load_settings(alpha="0.1").alpha
    '0.1'
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", frozen=True, str_strip_whitespace=True)

    database_url: Annotated[str, AfterValidator(_usable_url)] = Field(
        default="sqlite:///.surespan/surespan.db",
        description="Where everything is kept: an SQLite file, or PostgreSQL for several replicas.",
    )
    model: str | None = Field(default=None, description="The tagger: empty for the bundled one.")
    alpha: Annotated[str, AfterValidator(_decimal)] = Field(
        default="0.05", description="Share of sets that may miss the true labeling."
    )
    method: Annotated[str, Field(pattern=r"^[a-z0-9_+]+$")] = Field(
        default="nc1", description="The method of the library that makes the sets."
    )
    max_shown: int = Field(default=5, ge=1, description="Labelings shown to the annotator.")
    max_sequences: int = Field(default=10_000, ge=1, description="Labelings listed before a set is called open.")
    n_min: int = Field(default=100, ge=1, description="Labels a stratum needs to stand alone.")
    text_retention: Days = Field(
        default=None,
        description="Days after which task texts are removed; empty keeps them. Without its text a task cannot be "
        "scored under a new model, exported, or shown again.",
    )
    model_dir: Optional = Field(
        default=None,
        validation_alias=_known_as("MODEL_DIR", "model_dir"),
        description="Directory in which a model that SURESPAN_MODEL names is looked for.",
    )
    port: int = Field(
        default=9090, ge=1, le=65535, validation_alias=_known_as("PORT", "port"), description="Port of the service."
    )
    host: Optional = Field(
        default=None,
        description="Address the service listens on. Empty: all of them with credentials, loopback without.",
    )
    workers: int = Field(
        default=1,
        ge=1,
        le=64,
        validation_alias=_known_as("WORKERS", "workers"),
        description="Processes of the service; more than one needs PostgreSQL.",
    )
    threads: int = Field(
        default=32,
        ge=1,
        le=256,
        validation_alias=_known_as("THREADS", "threads"),
        description="Predictions in progress at once in a process; others wait their turn.",
    )
    log_level: Annotated[str, AfterValidator(_level)] = Field(
        default="info",
        validation_alias=_known_as("LOG_LEVEL", "log_level"),
        description="How much is logged: debug, info, warning or error.",
    )
    basic_auth_user: Optional = Field(
        default=None,
        validation_alias=_known_as("BASIC_AUTH_USER", "basic_auth_user"),
        description="User name that callers must send.",
    )
    basic_auth_pass: Secret = Field(
        default=None,
        validation_alias=_known_as("BASIC_AUTH_PASS", "basic_auth_pass"),
        description="Password that callers must send.",
    )
    webhook_secret: Secret = Field(
        default=None, description="What Label Studio sends to /webhook in the header X-Surespan-Secret."
    )
    labels_control: Optional = Field(
        default=None,
        description="Name of the Labels control to fill, where a label config has several; empty takes the first "
        "that can hold a class of the model.",
    )
    max_request_mb: int = Field(default=64, ge=1, le=1024, description="Largest request body, in megabytes.")
    max_text: int = Field(
        default=20_000, ge=1, le=1_000_000, description="Characters of a task's text; longer ones are not predicted."
    )
    task_hosts: str = Field(
        default="",
        description="Hosts, separated by commas, from which the text of a task may be fetched when its value is a URL. "
        "Empty: no URL is ever followed.",
    )
    cache_tasks: int = Field(default=5_000, ge=0, description="Predictions kept in memory; 0 keeps none.")
    model_wait: float = Field(
        default=90.0, gt=0, le=600, description="Seconds that /predict waits for the model to be loaded."
    )
    served_retention: Days = Field(
        default=180,
        description="Days that served sets are kept; coverage of what was shown is known for this long.",
    )


def load_settings(**overrides: Any) -> Settings:  # noqa: ANN401 - values of any setting
    """Read the settings from the environment; keyword arguments win over it.

    A model that is no path is looked for in `MODEL_DIR`.

    Raises:
        InvalidSetting: for the first bad value, with its name, what was expected and what was got.
    """
    try:
        settings = Settings(**overrides)
    except ValidationError as error:
        raise InvalidSetting(_explain(error.errors()[0])) from None
    if settings.model and settings.model_dir and not Path(settings.model).exists():
        inside = Path(settings.model_dir) / settings.model
        if inside.exists():
            return settings.model_copy(update={"model": str(inside)})
    return settings


def variable_of(field: str) -> str:
    """Return the environment variable of a setting.

    >>> variable_of("alpha"), variable_of("port")
    ('SURESPAN_ALPHA', 'PORT')
    """
    alias = Settings.model_fields[field].validation_alias
    return str(alias.choices[0]) if isinstance(alias, AliasChoices) else f"{PREFIX}{field.upper()}"


def _explain(problem: Mapping[str, Any]) -> str:
    field = str(problem["loc"][0]) if problem["loc"] else "?"
    name = variable_of(field.lower()) if field.lower() in Settings.model_fields else field
    context = problem.get("ctx", {})
    limits = {
        "greater_than_equal": "a whole number of at least {ge}",
        "less_than_equal": "at most {le}",
        "greater_than": "more than {gt}",
    }
    if problem["type"] == "value_error":
        expected = str(context["error"])
    elif problem["type"] in limits:
        expected = limits[problem["type"]].format(**context)
    elif problem["type"].startswith("int_"):
        expected = "a whole number"
    elif problem["type"].startswith("float_"):
        expected = "a number"
    else:
        expected = str(problem["msg"])
    got = "a value that is not shown here" if name.endswith(_SECRET) else repr(problem["input"])
    return f"{name}: expected {expected}, got {got}"
