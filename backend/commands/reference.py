"""Commands, settings, routes and metrics as Markdown: `python -m backend.commands.reference docs/reference`.

The pages in `PAGES` are the output of this module, and a test fails when they are not.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from pydantic import AliasChoices
from pydantic.fields import FieldInfo

from backend.cli import main as group
from backend.http.openapi import document
from backend.settings import Settings, load_settings, variable_of

_WIDTH = 100
_COMMANDS = """# Command line

Generated from `--help` by `python -m backend.commands.reference docs/reference`; do not edit.

Settings are environment variables, listed in [settings.md](settings.md). Without Label Studio the commands work on the
project `local`. Errors go to stderr with exit code 1; a wrong option has exit code 2.
"""
_SETTINGS = """# Settings

Generated from the code by `python -m backend.commands.reference docs/reference`; do not edit.

Every setting is an environment variable. A bad value is refused at start with its name, what was expected and what was
got; secrets are never repeated. An empty value counts as none where the default is empty.

| variable | default | meaning |
|---|---|---|
"""
_ROUTES = """# Routes for programs

Generated from the code by `python -m backend.commands.reference docs/reference`; do not edit.

What `GET /api/v1/openapi.json` says, in short; the shapes of bodies and answers are there. A question mark follows
what may be left out. How the routes behave, who may call them, and the dashboard's pages are in [http.md](http.md).

| route | does | asks for | answers |
|---|---|---|---|
"""
_METRICS = """# Metrics

Generated from the code by `python -m backend.commands.reference docs/reference`; do not edit.

What `GET /metrics` tells Prometheus; how several processes count together is in [http.md](http.md), what to do when a
figure is bad in the [runbook](../operate.md#runbook). A histogram has `_bucket`, `_sum` and `_count`. Figures of the
*database* are the same for all replicas and are read at most every 15 s; those of the *process* the service counts.

| metric | kind | from | meaning |
|---|---|---|---|
"""


def contexts(context: click.Context) -> Iterator[click.Context]:
    """Yield the context of every command below one, groups before what is in them.

    >>> [found.command_path for found in contexts(root())][:2]
    ['surespan', 'surespan accept']
    """
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            inner = context.command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from contexts(click.Context(inner, info_name=name, parent=context))


def root() -> click.Context:
    """Return the context of `surespan` itself; the width is fixed, because help is wrapped to the terminal's."""
    names = group.context_settings["help_option_names"]
    return click.Context(
        group, info_name="surespan", help_option_names=names, terminal_width=_WIDTH, max_content_width=_WIDTH
    )


def command_reference() -> str:
    """Return what every command says of itself."""
    shown = (f"## {each.command_path}\n\n```text\n{each.get_help().rstrip()}\n```\n" for each in contexts(root()))
    return "\n".join([_COMMANDS, *shown])


def setting_reference() -> str:
    """Return every setting with its default and what it is for."""
    return _SETTINGS + "".join(_setting(name, field) for name, field in Settings.model_fields.items())


def _setting(name: str, field: FieldInfo) -> str:
    alias = field.validation_alias
    ways = [str(each) for each in alias.choices] if isinstance(alias, AliasChoices) else [variable_of(name)]
    # The name in the code is a way to set it from Python, not an environment variable.
    shown = ", ".join(f"`{way}`" for way in ways if way.isupper())
    default = "" if field.default is None else f"`{field.default}`" if field.default != "" else ""
    return f"| {shown} | {default} | {(field.description or '').replace('|', chr(92) + '|')} |\n"


def route_reference() -> str:
    """Return the routes of the OpenAPI document, which a test holds to those that are served."""
    said: dict[str, Any] = document()
    return _ROUTES + "".join(
        _route(method.upper(), path, operation)
        for path, item in said["paths"].items()
        for method, operation in item.items()
    )


def _route(method: str, path: str, operation: dict[str, Any]) -> str:
    asked = [f"`{each['name']}`{'' if each['required'] else '?'}" for each in operation.get("parameters", [])]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    needed = body.get("required", [])
    asked += [f"`{name}`{'' if name in needed else '?'}" for name in body.get("properties", {})]
    content = operation["responses"]["200"]["content"]
    schema = next(iter(content.values())).get("schema", {})
    given = schema.get("$ref", "").rsplit("/", 1)[-1] or ", ".join(f"`{name}`" for name in schema.get("properties", {}))
    shown = path.replace("{", "<").replace("}", ">")
    return f"| `{method} {shown}` | {operation['summary']} | {', '.join(asked)} | {given} |\n"


def metric_reference() -> str:
    """Return the metrics of a service, over an empty database of its own."""
    from backend.app import create_app, service_of

    with tempfile.TemporaryDirectory() as directory:
        app = create_app(load_settings(database_url=f"sqlite:///{directory}/empty.db", model="bundled"), start=False)
        try:
            return _METRICS + "".join(sorted(_metrics(service_of(app).measures.registry)))
        finally:
            service_of(app).close()


def _metrics(registry: Any) -> Iterator[str]:  # noqa: ANN401 - prometheus_client tells the labels to nobody but itself
    for collector in list(registry._collector_to_names):  # noqa: SLF001
        counted = hasattr(collector, "_type")
        source = "process" if counted else "database"
        for family in collector.collect():
            labels = (collector if counted else family)._labelnames  # noqa: SLF001
            name = f"{family.name}_total" if family.type == "counter" else family.name
            shown = f"{name}{{{','.join(labels)}}}" if labels else name
            yield f"| `{shown}` | {family.type} | {source} | {family.documentation} |\n"


PAGES = {
    "cli.md": command_reference,
    "metrics.md": metric_reference,
    "routes.md": route_reference,
    "settings.md": setting_reference,
}


if __name__ == "__main__":
    for page, make in PAGES.items():
        (Path(sys.argv[1]) / page).write_text(make(), encoding="utf-8")
