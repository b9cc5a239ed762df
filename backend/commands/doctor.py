"""`surespan doctor`: what is wrong with a set-up, and how to fix it."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator

import click

from backend.commands.server import label_studio_options, settings_for
from backend.doctor.findings import CHECKS, Finding, fail
from backend.errors import InvalidSetting

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red", "skipped": None}


@click.command("doctor")
@click.option(
    "--project",
    "numbers",
    type=click.IntRange(min=1),
    multiple=True,
    help="Number of a project in Label Studio; may be given several times. [default: all connected]",
)
@label_studio_options
@click.option("--service-url", help="Address of `surespan serve`, for us and for Label Studio. [default: this machine]")
@click.option("--quick", is_flag=True, help="Do not load the model.")
@click.option("--strict", is_flag=True, help="Count warnings as failures in the exit code.")
def command(
    *,
    numbers: tuple[int, ...],
    url: str | None,
    api_key: str | None,
    as_json: bool,
    service_url: str | None,
    quick: bool,
    strict: bool,
) -> None:
    """Say what is wrong with a set-up, and how to fix it.

    Looks at settings, database, disk, model, worker, service, Label Studio and connected projects, and changes
    nothing. Works without a running service and without a token; what cannot be seen then is skipped.

    Exit code 0: nothing fails; 1: something does (with --strict, or is worth a warning); 2: wrong options.
    """
    arriving = _findings(numbers, url, api_key, service_url, quick=quick)
    findings = list(arriving if as_json else _shown(arriving))
    counts = {name: sum(each.state == name for each in findings) for name in _COLOURS}
    good = not counts["fail"] and not (strict and counts["warn"])
    if as_json:
        click.echo(json.dumps({"ok": good, "counts": counts, "findings": [each.as_dict() for each in findings]}))
    else:
        said = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        click.echo(f"\n{said}. {'Nothing fails.' if not counts['fail'] else 'Begin with the first failure.'}")
    sys.exit(0 if good else 1)


def _findings(
    numbers: tuple[int, ...], url: str | None, api_key: str | None, service_url: str | None, *, quick: bool
) -> Iterator[Finding]:
    from backend.doctor.run import diagnose

    try:
        settings = settings_for(url, api_key)
    except InvalidSetting as error:
        yield fail("settings", str(error), "correct the variable; nothing else was checked")
        return
    yield from diagnose(settings, projects=numbers, service_url=service_url, load_model=not quick)


def _shown(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Print findings as they come in, and hand them on."""
    wide = max(map(len, CHECKS))
    # A pipe gets whole lines, for grep; people get lines that fit.
    width = min(shutil.get_terminal_size().columns, 120) if sys.stdout.isatty() else None
    heading = None
    for each in findings:
        if each.group != heading:
            click.echo(("" if heading is None else "\n") + click.style(each.group, bold=True))
            heading = each.group
        state = click.style(f"{each.state.value:<7}", fg=_COLOURS[each.state.value])
        indent = " " * (wide + 12)
        click.echo(f"  {each.check:<{wide}}  {state} {_fit(each.facts, width, indent)}")
        if each.remedy:
            click.echo(f"{indent}{_fit('do: ' + each.remedy, width, indent + '    ')}")
        if each.state in {"fail", "warn"}:
            click.echo(f"{indent}see {each.link}")
        yield each


def _fit(text: str, width: int | None, indent: str) -> str:
    if width is None:
        return text
    lines = textwrap.wrap(text, max(20, width - len(indent)), break_long_words=False, break_on_hyphens=False)
    return f"\n{indent}".join(lines)
