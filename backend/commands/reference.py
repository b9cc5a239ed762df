"""Command line and settings as Markdown, made from the code: `python -m backend.commands.reference docs/reference`.

docs/reference/cli.md and settings.md are the output of this module, and a test fails when they are not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click
from pydantic import AliasChoices
from pydantic.fields import FieldInfo

from backend.cli import main as group
from backend.settings import Settings, variable_of

_WIDTH = 100
_COMMANDS = """# Command line

Generated from `--help` by `python -m backend.commands.reference docs/reference`; do not edit.

Settings are environment variables, listed in [settings.md](settings.md). Without Label Studio the commands work on the
project `local`. Errors go to stderr with exit code 1; a wrong option has exit code 2.
"""
_SETTINGS = """# Settings

Generated from the code by `python -m backend.commands.reference docs/reference`; do not edit.

Every setting is an environment variable. A bad value is refused at start with its name, what was expected and what was
got; secrets are never repeated. An empty value is the same as none where the default is empty.

| variable | default | is |
|---|---|---|
"""


def contexts(context: click.Context) -> Iterator[click.Context]:
    """Yield the context of every command below one, groups before what is in them.

    >>> [found.command_path for found in contexts(root())][:2]
    ['surespan', 'surespan calibrate']
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


PAGES = {"cli.md": command_reference, "settings.md": setting_reference}


if __name__ == "__main__":
    for page, make in PAGES.items():
        (Path(sys.argv[1]) / page).write_text(make(), encoding="utf-8")
