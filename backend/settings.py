"""Every setting, its default and its check: one class, read from the environment.

Names that the Label Studio ecosystem knows are kept; ours start with `SURESPAN_`. A bad value is refused at start with
its name, what was expected and what was got; secrets and passwords are never repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
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


def _empty_is_unset(value: object) -> object:
    return None if value == "" else value


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
    served_retention: Days = Field(
        default=180,
        description="Days that served sets are kept; coverage of what was shown is known for this long.",
    )


def load_settings(**overrides: Any) -> Settings:  # noqa: ANN401 - values of any setting
    """Read the settings from the environment; keyword arguments win over it.

    Raises:
        InvalidSetting: for the first bad value, with its name, what was expected and what was got.
    """
    try:
        return Settings(**overrides)
    except ValidationError as error:
        raise InvalidSetting(_explain(error.errors()[0])) from None


def _explain(problem: Mapping[str, Any]) -> str:
    field = str(problem["loc"][0]) if problem["loc"] else "?"
    name = f"{PREFIX}{field.upper()}"
    context = problem.get("ctx", {})
    limits = {"greater_than_equal": "a whole number of at least {ge}", "less_than_equal": "at most {le}"}
    if problem["type"] == "value_error":
        expected = str(context["error"])
    elif problem["type"] in limits:
        expected = limits[problem["type"]].format(**context)
    elif problem["type"].startswith("int_"):
        expected = "a whole number"
    else:
        expected = str(problem["msg"])
    got = "a value that is not shown here" if name.endswith(_SECRET) else repr(problem["input"])
    return f"{name}: expected {expected}, got {got}"
