"""`surespan recalibrate`: refit now, and show the new thresholds against the old."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import click

from backend.commands.errors import reported
from backend.settings import load_settings

if TYPE_CHECKING:
    from backend.recalibrate import PoolChange, Refit


@click.command("recalibrate")
@click.option("--model", help="The tagger. [default: SURESPAN_MODEL or the bundled one]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@reported
def command(*, model: str | None, as_json: bool) -> None:
    """Refit the thresholds of the project `local` from its stored labels."""
    from backend.local import refit_local
    from backend.store import open_store
    from backend.tagger.tagger import BUNDLED, load_tagger

    settings = load_settings(**({} if model is None else {"model": model}))
    tagger = load_tagger(settings.model or BUNDLED)
    with open_store(settings.database_url) as store:
        _, made = refit_local(store, tagger, settings, reason="recalibrate")
    echo_refit(made, as_json=as_json)


def echo_refit(made: Refit, *, as_json: bool) -> None:
    """Print what a refit did."""
    if as_json:
        click.echo(json.dumps(_as_dict(made)))
        return

    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    version = made.version
    if not made.changed:
        console.print(f"Nothing changed: threshold version {version.id} serves on ({version.guarantee}).")
        return
    table = Table(title=f"Threshold version {version.id} ({version.guarantee}, alpha {version.alpha})", box=None)
    for name in ("pool or class", "n before", "n", "tau before", "tau"):
        table.add_column(name, justify="left" if name.startswith("pool") else "right")
    for change in made.changes:
        before = "" if change.n_before is None else f"{change.n_before:,}"
        table.add_row(change.name, before, f"{change.n_after:,}", _number(change.tau_before), _number(change.tau_after))
    console.print(table)


def _as_dict(made: Refit) -> dict[str, object]:
    return {
        "threshold_version": made.version.id,
        "previous_version": None if made.previous is None else made.previous.id,
        "changed": made.changed,
        "guarantee": made.version.guarantee,
        "alpha": made.version.alpha,
        "pools": [_change(change) for change in made.changes],
    }


def _change(change: PoolChange) -> dict[str, object]:
    # JSON has no infinity: null is an infinite threshold, absent rows are told apart by n_before.
    finite = {
        name: value if value is not None and math.isfinite(value) else None
        for name, value in (("tau_before", change.tau_before), ("tau", change.tau_after))
    }
    return {"kind": change.kind, "name": change.name, "n_before": change.n_before, "n": change.n_after, **finite}


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return "open" if math.isinf(value) else f"{value:.4f}"
