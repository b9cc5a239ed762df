"""`surespan calibrate`: labelled files as calibration labels, then new thresholds from them."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress

from backend.commands.errors import reported
from backend.commands.recalibrate import echo_refit
from backend.settings import load_settings


@click.command("calibrate")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--language", help="Language of the texts; identified if not given.")
@click.option("--model", help="The tagger. [default: SURESPAN_MODEL or the bundled one]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@reported
def command(files: tuple[Path, ...], *, language: str | None, model: str | None, as_json: bool) -> None:
    """Load labelled FILES (CoNLL columns or Label Studio exports) as calibration labels of the project `local`.

    You vouch that these texts are a random sample of what is to come; the guarantee is then your own. Loading a
    file again changes nothing.
    """
    from backend.calibration.local import load_file, local_rows, refit_local
    from backend.store import open_store
    from backend.tagger.configured import load_configured

    settings = load_settings(**({} if model is None else {"model": model}))
    tagger = load_configured(settings)
    console = Console(stderr=True)
    with open_store(settings.database_url) as store, Progress(console=console, transient=True) as bars:
        project, _ = local_rows(store, tagger)
        total = 0
        for path in files:
            bar = bars.add_task(f"reading {path.name}", total=None)
            loaded = load_file(
                store,
                project,
                path,
                language=language,
                progress=lambda n, bar=bar: bars.advance(bar, n),  # type: ignore[misc]
            )
            total += loaded.texts
            notes = [f"{loaded.repairs:,} illegal IOB2 moves repaired"] if loaded.repairs else []
            notes += [f"{count:,} skipped ({reason})" for reason, count in sorted(loaded.skipped.items())]
            console.print(f"{loaded.name}: " + ", ".join([f"{loaded.texts:,} texts", *notes]), highlight=False)
        bar = bars.add_task("scoring", total=total)
        done, refit = refit_local(store, tagger, settings, reason="calibrate", progress=lambda n: bars.advance(bar, n))
    console.print(
        f"{done.scored:,} new calibration rows, {done.inexpressible:,} of them with a label that the model cannot "
        "express (these count as misses)",
        highlight=False,
    )
    echo_refit(refit, as_json=as_json)
