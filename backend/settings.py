"""Every setting, its default and its check: one class, read from the environment.

Names that the Label Studio ecosystem knows are kept; ours start with `SURESPAN_`. A bad value is refused at start with
its name, what was expected and what was got; secrets and passwords are never repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from backend.domain.alpha import plain_alpha
from backend.domain.flag_rule import RiskRule
from backend.errors import InvalidSetting

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

PREFIX = "SURESPAN_"
_DEVICE = r"^(auto|cpu|cuda(:\d+)?|mps)$"
_FORMS = {_DEVICE: "auto, cpu, cuda, cuda:0 and so on, or mps"}  # what a pattern means, in words
_STATE = ".surespan"  # beside the default database
DATABASE_FILE = f"{_STATE}/surespan.db"  # the default database
DEFAULT_DATABASE = f"sqlite:///{DATABASE_FILE}"
_SECRET = ("DATABASE_URL", "SECRET", "API_KEY", "PASS")


def _usable_url(value: str) -> str:
    if value == DEFAULT_DATABASE:
        return value  # said without the library that reads such URLs, which takes long to import
    try:
        database_url(value)
    except InvalidSetting as error:
        raise ValueError(str(error).split("expected ", 1)[-1].split(", got")[0]) from None
    return value


def _method(value: str) -> str:
    if value != "nc1":
        # The library takes a second to import, and the default needs none of it.
        from conformal.errors import InvalidArgument  # noqa: PLC0415
        from conformal.scores import split_name  # noqa: PLC0415

        try:
            split_name(value)
        except InvalidArgument as error:
            raise ValueError(str(error).removeprefix("expected ").rsplit(", got", 1)[0]) from None
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
Count = Annotated[Annotated[int, Field(ge=1)] | None, BeforeValidator(_empty_is_unset)]
Switch = Annotated[bool | None, BeforeValidator(_empty_is_unset)]


class Settings(BaseSettings):
    """The settings, with their environment variables as aliases.

    >>> load_settings(alpha="0.1").alpha
    '0.1'
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", frozen=True, str_strip_whitespace=True)

    database_url: Annotated[str, AfterValidator(_usable_url)] = Field(
        default=DEFAULT_DATABASE,
        description="Where everything is kept: an SQLite file, or PostgreSQL for several replicas.",
    )
    model: Optional = Field(
        default=None,
        description="The tagger: empty for the bundled one, else a folder or a hub id (owner/name, with @revision).",
    )
    model_map: Optional = Field(
        default=None,
        description="JSON file that says what a checkpoint's labels mean: names, scheme, classes, languages. Empty: "
        "its own surespan.json, if there is one.",
    )
    torch_threads: Count = Field(
        default=None,
        description="CPU threads in which a process computes; empty: OMP_NUM_THREADS, and 1 where that is not set.",
    )
    int8: bool = Field(default=False, description="Compute the layers of an encoder in 8 bits: faster on a CPU.")
    device: Annotated[str, Field(pattern=_DEVICE)] = Field(
        default="auto", description="Where an encoder runs: auto (a GPU if there is one), cpu, or cuda:0 and so on."
    )
    alpha: Annotated[str, AfterValidator(plain_alpha)] = Field(
        default="0.05", description="Share of sets that may miss the true labeling."
    )
    flags: Literal["risk", "sets"] = Field(
        default="risk",
        description="What is flagged for review: risk (as little as keeps the share of errors elsewhere within "
        "MAX_ERROR) or sets (every span with several labels in its set, which promises nothing about the rest).",
    )
    max_error: Annotated[str, AfterValidator(plain_alpha)] = Field(
        default="0.05",
        description="Share of a task's entities that may be wrong or missing, on average, where nothing is flagged.",
    )
    max_error_sure: bool = Field(
        default=False,
        description="Keep MAX_ERROR with 95 % certainty instead of on average: more places are flagged.",
    )
    method: Annotated[str, AfterValidator(_method)] = Field(
        default="nc1",
        description="The method of the library that makes the sets, for instance logrank+nc1; after a slash the one "
        "for single spans, as in nc1/raps+nc1.",
    )
    max_shown: int = Field(default=5, ge=1, description="Labelings shown to the annotator.")
    max_sequences: int = Field(default=10_000, ge=1, description="Labelings listed before a set is called open.")
    n_min: int = Field(default=100, ge=1, description="Labelled tasks a stratum needs to stand alone.")
    unit: Literal["sentence", "task"] = Field(
        default="sentence",
        description="What a set is made for: each sentence of a text, or the whole text, which only short texts suit.",
    )
    learn: Literal["auto", "manual", "off"] = Field(
        default="auto",
        description="Whether projects train models of their own from their labels: by themselves at 20, 40, 80, ... "
        "labels and when asked to (auto), only when asked to (manual), or never (off).",
    )
    learn_from: str = Field(
        default="bundled",
        min_length=1,
        description="What such a model begins with: bundled (what the bundled network says about each word; its "
        "licence is non-commercial), nothing, or the folder of a network that `surespan train` made.",
    )
    text_retention: Days = Field(
        default=None,
        description="Days after which task texts are removed; empty keeps them. Without its text a task cannot be "
        "scored under a new model, exported, or shown again.",
    )
    model_dir: Optional = Field(
        default=None,
        validation_alias=_known_as("MODEL_DIR", "model_dir"),
        description="Directory in which the model named by SURESPAN_MODEL is looked for, and whose folder `projects` "
        "holds the models of projects: a copy of those in the database, and those above 64 MB alone, so that all "
        "replicas must share it then. Empty: beside the SQLite file, or `.surespan`.",
    )
    models_in_memory: int = Field(
        default=4,
        ge=1,
        description="Models of projects in memory at once, beside SURESPAN_MODEL; the one that was used longest ago "
        "makes room.",
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
        description="Predictions in progress at once per process; others wait their turn.",
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
    label_studio_url: Optional = Field(
        default=None,
        validation_alias=_known_as("LABEL_STUDIO_URL", "LABEL_STUDIO_HOST", "label_studio_url"),
        description="Address of Label Studio, as seen from here; needed to reconcile, refresh and connect.",
    )
    label_studio_public_url: Optional = Field(
        default=None,
        description="Address at which people open Label Studio, for links to tasks; empty: LABEL_STUDIO_URL.",
    )
    label_studio_api_key: Secret = Field(
        default=None,
        validation_alias=_known_as("LABEL_STUDIO_API_KEY", "label_studio_api_key"),
        description="A personal access token of Label Studio, or a legacy one.",
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
        default=1_000_000,
        ge=1,
        le=10_000_000,
        description="Characters of a task's text; longer ones are not predicted.",
    )
    task_hosts: str = Field(
        default="",
        description="Hosts, separated by commas, from which the text of a task may be fetched when its value is a URL. "
        "Empty: no URL is ever followed.",
    )
    task_hosts_private: bool = Field(
        default=False,
        description="Whether hosts in SURESPAN_TASK_HOSTS may lie at private addresses or on this machine; a listed "
        "address and localhost may anyway, link-local addresses never.",
    )
    cache_tasks: int = Field(default=5_000, ge=0, description="Predictions kept in memory; 0 keeps none.")
    model_wait: float = Field(
        default=90.0, gt=0, le=600, description="Seconds that /predict waits for the model to be loaded."
    )
    audit_share: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="Share of tasks that are kept for audit, without prelabels, while the model's doubt decides the "
        "order of work.",
    )
    blind: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="Share of tasks without prelabels while tasks are given out in random order.",
    )
    evidence: Literal["auto", "blind", "all"] = Field(
        default="auto",
        description="Which labels thresholds rest on: auto (those made without a prelabel as soon as there are N_MIN "
        "of them, else all), blind (only those) or all.",
    )
    skipped: Literal["restate", "infinite"] = Field(
        default="restate",
        description="What a skipped task counts as while nobody labels it: restate (left out; the promise is for "
        "tasks people label, and the share is shown) or infinite (a label out of reach).",
    )
    refit_every_labels: Count = Field(
        default=None,
        description="New labels after which thresholds are fitted again. Empty: 20, or a tenth of what there is if "
        "that is more.",
    )
    refit_every_minutes: float = Field(
        default=60.0, gt=0, description="Minutes after which thresholds are fitted again if there is any new label."
    )
    sync_every_minutes: float = Field(
        default=10.0,
        ge=0,
        description="Minutes between two looks at Label Studio for what its webhooks did not deliver; 0 means never.",
    )
    at_work_minutes: float = Field(
        default=60.0,
        ge=0,
        description="Minutes for which a task that was opened counts as being worked on: until then its predictions "
        "are not refreshed, those it had are not removed, and it is left out of the review queue. Leases of the queue "
        "last as long.",
    )
    worker: Switch = Field(
        default=None,
        description="Whether `surespan serve` processes events itself. Empty: with SQLite, yes; otherwise run "
        "`surespan worker` beside it.",
    )
    min_free_mb: int = Field(
        default=500, ge=0, description="Free disk space, in megabytes, below which `surespan doctor` warns."
    )
    served_retention: Days = Field(
        default=180,
        description="Days that served sets are kept; coverage of what was shown is known for that long.",
    )

    @property
    def own_url(self) -> str:
        """Where the service is on this machine.

        >>> load_settings(host="0.0.0.0", port=9091).own_url, load_settings(host="::1").own_url
        ('http://127.0.0.1:9091', 'http://[::1]:9090')
        """
        host = "127.0.0.1" if self.host is None or self.host in {"0.0.0.0", "::"} else self.host  # noqa: S104 - told apart
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def models_directory(self) -> Path:
        """Where models of projects lie on this machine.

        >>> load_settings(model_dir="/models").models_directory.as_posix()
        '/models/projects'
        >>> load_settings(model_dir=None, database_url="sqlite:////data/surespan.db").models_directory.as_posix()
        '/data/projects'
        """
        url = database_url(self.database_url)
        beside = Path(url.database or "").parent if url.drivername == "sqlite" else Path(_STATE)
        return (Path(self.model_dir) if self.model_dir else beside) / "projects"

    @property
    def risk_rule(self) -> RiskRule | None:
        """The risk that flags control, None where they mark every span with several labels.

        >>> load_settings(max_error="0.02").risk_rule, load_settings(flags="sets").risk_rule
        (RiskRule(max_error='0.02', sure=False), None)
        """
        return RiskRule(self.max_error, self.max_error_sure) if self.flags == "risk" else None

    @property
    def people_url(self) -> str | None:
        """Where people open Label Studio."""
        return self.label_studio_public_url or self.label_studio_url


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
    if problem["type"] == "value_error":
        expected = str(context["error"])
    elif problem["type"] == "literal_error":
        expected = str(context["expected"])
    else:
        expected = _expected(field.lower()) or str(problem["msg"])
    got = "a value that is not shown here" if name.endswith(_SECRET) else repr(problem["input"])
    return f"{name}: expected {expected}, got {got}"


def _expected(field: str) -> str | None:
    """Return what a setting takes, in words, from its type and bounds; None where those do not say it.

    >>> _expected("blind"), _expected("port"), _expected("refit_every_labels"), _expected("refit_every_minutes")
    ('a number from 0 to 1', 'a whole number from 1 to 65535', 'a whole number of at least 1', 'a number above 0')
    """
    schema = Settings.model_json_schema(by_alias=False)["properties"].get(field, {})
    # An optional setting is one of its own type and null.
    schema = next((each for each in schema.get("anyOf", ()) if each["type"] != "null"), schema)
    kind = schema.get("type")
    if kind == "boolean":
        return "true or false"
    if kind not in {"integer", "number"}:
        return _FORMS.get(schema.get("pattern"))
    least, most, above = schema.get("minimum"), schema.get("maximum"), schema.get("exclusiveMinimum")
    bounds = {
        (True, True, False): f" from {least} to {most}",
        (True, False, False): f" of at least {least}",
        (False, False, True): f" above {above}",
        (False, True, True): f" above {above}, at most {most}",
    }.get((least is not None, most is not None, above is not None), "")
    return f"a {'whole ' if kind == 'integer' else ''}number{bounds}"


_EXPECTED_URL = "sqlite:///path/to/file.db or postgresql://user:password@host/database"


def database_url(raw: str) -> URL:
    """Return the SQLAlchemy URL for what the user wrote.

    `postgres://` and `postgresql://` both mean PostgreSQL through psycopg 3. In-memory SQLite is refused, because two
    processes (or two connections) would not see the same database.

    Raises:
        InvalidSetting: for any other database or a URL that cannot be read. Passwords are not repeated.

    >>> str(database_url("postgres://ann@db/surespan"))
    'postgresql+psycopg://ann@db/surespan'
    """
    from sqlalchemy.engine import make_url  # noqa: PLC0415
    from sqlalchemy.exc import ArgumentError  # noqa: PLC0415

    try:
        url = make_url(raw)
    except (ArgumentError, ValueError):
        raise InvalidSetting(
            f"SURESPAN_DATABASE_URL: expected {_EXPECTED_URL}, got a value that is not a URL; "
            "escape special characters of the password with % codes"
        ) from None
    if url.drivername in {"postgres", "postgresql", "postgresql+psycopg"}:
        return url.set(drivername="postgresql+psycopg")
    if url.drivername in {"sqlite", "sqlite+pysqlite"}:
        path = url.database or ""
        if path in {"", ":memory:"} or path.startswith("file:"):
            raise InvalidSetting(
                "SURESPAN_DATABASE_URL: expected the path of a file, as in sqlite:///surespan.db, "
                f"got {url.render_as_string(hide_password=True)!r}; in-memory databases cannot be shared"
            )
        return url.set(drivername="sqlite")
    raise InvalidSetting(f"SURESPAN_DATABASE_URL: expected {_EXPECTED_URL}, got the driver {url.drivername!r}")
