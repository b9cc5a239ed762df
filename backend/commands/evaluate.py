"""`surespan evaluate`: every method on labelled data, with tables, plots and a recommendation."""

from __future__ import annotations

import resource
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from backend.commands.errors import reported
from backend.settings import load_settings

if TYPE_CHECKING:
    from backend.tagger.tagger import Tagger

SEEN_WARNING = 0.02  # share of texts seen in training above which the command says so


@click.command("evaluate")
@click.option("--model", help="The tagger. [default: SURESPAN_MODEL or the bundled one]")
@click.option(
    "--data",
    "files",
    multiple=True,
    required=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A labelled file, CoNLL columns or a Label Studio export; repeat for several.",
)
@click.option("--splits", default=20, show_default=True, type=click.IntRange(1), help="Random splits.")
@click.option("--rows", type=click.IntRange(10), help="Take a random sample of this many texts from each file.")
@click.option("--seed", default=0, show_default=True, help="Decides the sample, the tuning part and the splits.")
@click.option(
    "--out",
    default=Path("evaluation"),
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory for tables, plots and report.html.",
)
@click.option(
    "--cache",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory for decoded texts and finished pieces. [default: cache inside --out]",
)
@click.option(
    "--merge",
    metavar="NAME",
    help="Merge all classes, of the model and of the data, into one, NAME: are entities found, whatever their class?",
)
@click.option(
    "--documents",
    is_flag=True,
    help="Join the sentences of each document (-DOCSTART- lines, # newdoc comments; a task of an export is one) and "
    "evaluate sentences and whole texts as units, instead of all methods.",
)
@click.option(
    "--risk",
    is_flag=True,
    help="Flags that keep a risk: what they leave behind and ask for, file by file, instead of all methods; with "
    "--documents for whole documents.",
)
@click.option(
    "--accept",
    "acceptance",
    is_flag=True,
    help="Tasks that nobody needs to open: what is accepted and wrong when annotators stamp what they see, over "
    "--splits draws, file by file, instead of all methods; with --documents for whole documents.",
)
@click.option("--jobs", default=1, show_default=True, type=click.IntRange(1, 64), help="Processes to share the work.")
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write every figure here.")
@reported
def command(
    *,
    model: str | None,
    files: tuple[Path, ...],
    splits: int,
    rows: int | None,
    seed: int,
    out: Path,
    cache: Path | None,
    merge: str | None,
    documents: bool,
    risk: bool,
    acceptance: bool,
    jobs: int,
    json_file: Path | None,
) -> None:
    """Try all methods on labelled data that the model was not trained on.

    Texts that it was trained on are left out. The others are decoded once; a fifth of them tunes, the rest is split
    into calibration and test again and again. A run that was stopped continues where it left off when started again
    with the same options.
    """
    from backend.evaluation.decoding import distinct_names
    from backend.evaluation.merging import merge_classes
    from backend.evaluation.report import to_json, write_report
    from backend.evaluation.run import Plan, evaluate, prepare
    from backend.tagger.configured import load_configured

    settings = load_settings(**({} if model is None else {"model": model}))
    tagger = load_configured(settings)
    if merge is not None:
        tagger = merge_classes(tagger, merge)
    console = Console(stderr=True)
    if risk and acceptance:
        raise click.UsageError("expected --risk or --accept, got both")
    if risk or acceptance:
        _evaluate_promise(
            tagger,
            files,
            acceptance=acceptance,
            documents=documents,
            rows=rows,
            out=out,
            splits=splits,
            seed=seed,
            json_file=json_file,
            console=console,
        )
        return
    if documents:
        _evaluate_documents(tagger, files, out=out, splits=splits, seed=seed, json_file=json_file, console=console)
        return
    kept = cache or out / "cache"
    plan = Plan(splits=splits, seed=seed)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        names = distinct_names(files)
        reading = {name: bars.add_task(f"decoding {name}", total=None) for name in names}
        study, key = prepare(
            tagger,
            files,
            cache=kept,
            rows=rows,
            seed=seed,
            merge=merge,
            progress=lambda name, done, total: bars.update(reading[name], completed=done, total=total),
        )
        bar = bars.add_task("methods", total=None)
        begun = time.perf_counter()
        results = evaluate(
            study,
            plan,
            store=kept / "pieces",
            key=key,
            jobs=jobs,
            progress=lambda name, done, total: bars.update(bar, description=name, completed=done, total=total),
        )
    took = time.perf_counter() - begun
    # Processes share the decoded texts: their peaks must not be added up.
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1e6
    seen = int(study.seen.sum())
    about = {
        "model": f"{tagger.name}@{tagger.hash[:8]}",
        "classes": list(tagger.space.classes),
        "files": list(names),
        "texts": len(study.decoded),
        "left out, seen in training": seen,
        "left out, share": seen / len(study.decoded),
        "left out, without a word": len(study.decoded) - study.kept.size - seen,
        "tuning": int(study.tuning.size),
        "rows": rows,
        "merged into": merge,
        "splits": splits,
        "seed": seed,
        "targets": [f"{1 - float(alpha):g}" for alpha in plan.alphas],
        "unreachable labels": float((study.decoded["task.log_probability"][study.kept] == float("-inf")).mean()),
        "best labeling right": float((study.decoded["task.rank"][study.kept] == 1).mean()),
    }
    chosen = write_report(results, out, settings=about, alphas=plan.alphas)
    if json_file is not None:
        json_file.write_text(to_json({"settings": about, "recommended": chosen.method, "results": results}))
    console.print(
        f"{len(study.decoded):,} texts, {splits} splits: methods took {took:.0f} s, at most {peak:.1f} GB a process; "
        f"tables and plots in {out}",
        highlight=False,
    )
    if seen > SEEN_WARNING * len(study.decoded):
        console.print(
            f"warning: {seen:,} of {len(study.decoded):,} texts ({about['left out, share']:.1%}) were in the model's "
            "training data and are left out; use data that was held out",
            highlight=False,
        )
    click.echo(f"recommended: {chosen.reason}")


def _evaluate_documents(
    tagger: Tagger,
    files: tuple[Path, ...],
    *,
    out: Path,
    splits: int,
    seed: int,
    json_file: Path | None,
    console: Console,
) -> None:
    import json

    from backend.evaluation.documents import document_report, evaluate_documents, read_documents

    texts = read_documents(files, classes=tagger.space.classes)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        shown = {name: bars.add_task(f"scoring, unit {name}", total=len(texts)) for name in ("sentence", "task")}
        results = evaluate_documents(
            tagger,
            texts,
            splits=splits,
            seed=seed,
            progress=lambda name, done, total: bars.update(shown[name], completed=done, total=total),
        )
    out.mkdir(parents=True, exist_ok=True)
    (out / "documents.md").write_text(document_report(results), encoding="utf-8")
    if json_file is not None:
        json_file.write_text(json.dumps(results, indent=1), encoding="utf-8")
    console.print(f"{len(texts):,} documents, {splits} splits: the table is in {out / 'documents.md'}", highlight=False)


def _advance(bars: Progress, bar: TaskID, done: int) -> None:
    bars.update(bar, completed=done)


def _evaluate_promise(
    tagger: Tagger,
    files: tuple[Path, ...],
    *,
    acceptance: bool,
    documents: bool,
    rows: int | None,
    out: Path,
    splits: int,
    seed: int,
    json_file: Path | None,
    console: Console,
) -> None:
    import json

    from backend.evaluation.acceptance import evaluate_acceptance
    from backend.evaluation.acceptance_report import acceptance_report
    from backend.evaluation.decoding import distinct_names
    from backend.evaluation.risk import evaluate_risk, read_tasks, risk_report

    results = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        for name, path in zip(distinct_names(files), files, strict=True):
            texts = read_tasks(path, documents=documents, classes=tagger.space.classes, rows=rows, seed=seed)
            bar = bars.add_task(f"reading {name}", total=len(texts))
            advance = partial(_advance, bars, bar)
            if acceptance:
                results[name] = evaluate_acceptance(tagger, texts, draws=splits, seed=seed, progress=advance)
            else:
                results[name] = evaluate_risk(tagger, texts, splits=splits, seed=seed, progress=advance)
    out.mkdir(parents=True, exist_ok=True)
    page = out / ("acceptance.md" if acceptance else "risk.md")
    report = acceptance_report if acceptance else risk_report
    page.write_text(report(results, model=f"{tagger.name}@{tagger.hash[:8]}"), encoding="utf-8")
    if json_file is not None:
        json_file.write_text(json.dumps(results, indent=1), encoding="utf-8")
    console.print(f"{len(results)} files, {splits} splits: the tables are in {page}", highlight=False)
