"""`surespan simulate`: whole campaigns on a labelled file, before anybody decides."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from backend.commands.errors import reported
from backend.settings import load_settings

_LOAD_SECONDS = 600.0


@click.command("simulate")
@click.option(
    "--data",
    "files",
    multiple=True,
    required=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A labelled file, CoNLL columns or a Label Studio export; several are one corpus.",
)
@click.option(
    "--policies", default="hand,check,amber,accept", show_default=True, help="Ways to work, by name; see below."
)
@click.option("--seeds", default=1, show_default=True, type=click.IntRange(1, 1000), help="Campaigns of each.")
@click.option("--tasks", type=click.IntRange(50), help="Draw this many texts for each seed. [default: all]")
@click.option("--minutes", type=click.FloatRange(0.0), help="Begin no campaign after so many minutes.")
@click.option(
    "--max-error",
    "max_errors",
    multiple=True,
    default=("0.05",),
    show_default=True,
    help="Share of a task's entities that may be wrong; repeat for several.",
)
@click.option(
    "--blind", type=click.FloatRange(0.0, 1.0), help="Share of tasks without prelabels. [default: what is needed]"
)
@click.option(
    "--step", type=click.IntRange(1), default=20, show_default=True, help="Tasks between two looks at the labels."
)
@click.option(
    "--accuracy", default=1.0, show_default=True, type=click.FloatRange(0.0, 1.0), help="Chance to do what is due."
)
@click.option(
    "--stamping",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0.0, 1.0),
    help="Share of prelabels that are submitted unread.",
)
@click.option("--opening", default=4.0, show_default=True, help="Seconds to open a task.")
@click.option("--word", default=0.25, show_default=True, help="Seconds to read a word.")
@click.option("--place", default=2.0, show_default=True, help="Seconds to judge an amber place.")
@click.option("--correction", default=3.0, show_default=True, help="Seconds to relabel or delete a span.")
@click.option("--span", default=5.0, show_default=True, help="Seconds to mark a new span.")
@click.option(
    "--out",
    default=Path("simulation"),
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory for the page, the drawings and the finished campaigns.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@reported
def command(
    *,
    files: tuple[Path, ...],
    policies: str,
    seeds: int,
    tasks: int | None,
    minutes: float | None,
    max_errors: tuple[str, ...],
    blind: float | None,
    step: int,
    accuracy: float,
    stamping: float,
    opening: float,
    word: float,
    place: float,
    correction: float,
    span: float,
    out: Path,
    as_json: bool,
) -> None:
    """Play whole labelling campaigns on texts whose labels are known, with the product's own loop.

    No Label Studio is needed. People of stated habits label, correct and accept; printed is the work, as a share of
    the work by hand, and the errors that are left. Policies: hand (no prelabels), check (everything is checked), amber
    (amber places only), accept (amber places, and sure tasks are accepted unopened), fixed (as accept, without
    learning) and least (as amber, least confident first). Campaigns that are done are kept: the same command goes on
    where it was stopped.
    """
    from backend.acceptance.decision import Wish
    from backend.models.loading import ModelLoader
    from backend.simulation.annotators import Costs, Habits
    from backend.simulation.campaign import Rules
    from backend.simulation.policies import POLICIES, Policy
    from backend.simulation.report import drawings, report, summarise
    from backend.simulation.study import Plan, study
    from backend.tagger.readers import read_labelled

    names = [name.strip() for name in policies.split(",") if name.strip()]
    unknown = [name for name in names if name not in POLICIES]
    if unknown or not names:
        raise click.UsageError(f"expected policies among {', '.join(POLICIES)}, got {', '.join(unknown) or 'none'}")
    settings = load_settings()
    texts = [text for file in files for text in read_labelled(file).texts]
    costs, habits = Costs(opening, word, place, correction, span), Habits(accuracy, stamping)
    plan = Plan(
        policies=tuple(POLICIES[name] for name in names),
        rules=tuple(
            Rules(Wish(each).max_error, habits=habits, costs=costs, blind=blind, step=step) for each in max_errors
        ),
        seeds=tuple(range(seeds)),
        tasks=tasks,
        minutes=minutes,
    )
    console = Console(stderr=True)
    loader = ModelLoader(settings)
    loader.start()
    loader.tagger(_LOAD_SECONDS)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        bar = bars.add_task("campaigns", total=None)

        def tell(policy: Policy, rules: Rules, seed: int, total: int, done: int) -> None:
            bars.update(bar, description=f"{policy.name}, {rules.max_error}, seed {seed}", completed=done, total=total)

        found = study(texts, plan, settings=settings, loader=loader, kept=out / "campaigns", tell=tell)
    rows = summarise(found.played)
    if found.played:
        sizes = sorted({each.tasks for each in found.played})
        about = (
            f"{', '.join(file.name for file in files)}: {len(texts):,} texts, {sizes[-1]:,} tasks a campaign; "
            f"{costs}; {habits}; model {loader.header().version}."
        )
        pictures = drawings(found.played)
        for name, picture in pictures.items():
            (out / name).write_text(picture, encoding="utf-8")
        (out / "simulation.md").write_text(report(found.played, about=about, drawings=list(pictures)), encoding="utf-8")
    if found.missing:
        console.print(
            f"the time is over: {found.missing:,} campaigns were not played; the same command plays them",
            highlight=False,
        )
    if as_json:
        click.echo(json.dumps({"rows": rows, "missing": found.missing}))
        return
    Console().print(_table(rows))
    console.print(f"the page and its drawings are in {out}", highlight=False)


def _table(rows: list[dict[str, object]]) -> Table:
    table = Table(
        "aim", "policy", "campaigns", "work", "errors of a task", "of all", "opened", "accepted", "of these wrong"
    )
    for row in rows:
        table.add_row(
            *(str(row[name]) for name in ("max_error", "policy", "campaigns")),
            *(f"{row[name]:.1%}" for name in ("work", "loss", "whole", "opened", "accepted", "accepted_wrong")),
        )
    return table
