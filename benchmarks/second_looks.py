"""Second looks on real labels with planted errors: precision and recall of the list, and what a queue finds early.

    python benchmarks/second_looks.py --cache DIR --data FILE --data FILE ...

Prints the tables of docs/results/second-looks.md. Decoded texts are kept in the cache.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import click
import numpy as np

from backend.evaluation.planted import KINDS
from backend.evaluation.second_looks import (
    PlantedTexts,
    Trial,
    decode_planted,
    label_order_trial,
    picked_trial,
    queue_trial,
    run_trial,
)
from backend.tagger.loading import load_tagger
from backend.tagger.model_files import BUNDLED
from backend.tagger.readers import LabelledText, read_labelled
from backend.tagger.tagger import Tagger


@click.command()
@click.option("--data", "files", multiple=True, type=click.Path(path_type=Path, exists=True))
@click.option("--cache", type=click.Path(path_type=Path), default=Path(".second-looks"), show_default=True)
@click.option("--model", default=BUNDLED)
@click.option("--rows", default=4000, show_default=True, help="Sentences of each file, drawn at random.")
@click.option("--trials", default=20, show_default=True)
@click.option("--false", "false_out", type=click.Path(path_type=Path), help="Write unplanted labels on the list there.")
def main(files: tuple[Path, ...], cache: Path, model: str, rows: int, trials: int, false_out: Path | None) -> None:
    """Print every table."""
    if not files:
        click.echo("Needs labelled files (--data); figures of nine languages are in docs/results/second-looks.md.")
        return
    data, sources = _decode(load_tagger(model), files, cache=cache, rows=rows)
    click.echo(f"{len(data):,} sentences; best labeling wrong in {data.wrong.mean():.1%}")
    click.echo("errors by kind: " + ", ".join(f"{k} {np.mean(data.kind == i):.1%}" for i, k in enumerate(KINDS)))
    click.echo("\nlabels | wrong | level | checks (errors in them) | listed | precision | recall | "
               "plain: precision, recall at that length | plain: precision at that recall | found in all")  # fmt: skip
    plans = [(len(data), share, fdr) for share in (0.05, 0.02, 0.1) for fdr in ("0.05", "0.1", "0.2")]
    plans += [(size, 0.05, "0.1") for size in (1000, 3000, 10_000) if size < len(data)]
    for size, share, fdr in plans:
        _row(_trials(data, trials, size=size, share=share, fdr=fdr), size, share, fdr)
    for checks in (0, 25, 50, 100):
        made = _trials(data, trials, size=len(data), share=0.05, fdr="0.1", most=checks)
        _row(made, len(data), 0.05, f"0.1, {checks} checks")
    main_trials = _trials(data, trials, size=len(data), share=0.05, fdr="0.1")
    kinds = np.mean([each.recall_by_kind for each in main_trials], axis=0)
    click.echo("\nrecall by kind at 0.1: " + ", ".join(f"{k} {v:.1%}" for k, v in zip(KINDS, kinds, strict=True)))
    click.echo("\nfirst 20 % of unlabelled texts: wrong best labelings, corrections")
    for name, (tasks, corrections) in queue_trial(data, rng=np.random.default_rng(1)).items():
        click.echo(f"  {name:40} {tasks:.1%}  {corrections:.1%}")
    click.echo("\nplanted errors in the first 5 % and 20 % of labelled texts")
    early = label_order_trial(data, rng=np.random.default_rng(2), first=0.05)
    for name, found in label_order_trial(data, rng=np.random.default_rng(2)).items():
        click.echo(f"  {name:40} {early[name]:.1%}  {found:.1%}")
    click.echo("\nlabels of the most doubtful texts, picked by a queue: share of right ones listed at 0.1, recall")
    for top in (0.5, 0.2):
        made = [picked_trial(data, rng=np.random.default_rng([3, i]), top=top) for i in range(trials)]
        for name in made[0]:
            rate, recall = np.mean([each[name] for each in made], axis=0)
            click.echo(f"  most doubtful {top:.0%}, {name:24} {rate:.1%}  {recall:.1%}")
    if false_out is not None:
        _write_false(main_trials[0], data, sources, files, rows, false_out)


def _decode(tagger: Tagger, files: Iterable[Path], *, cache: Path, rows: int) -> tuple[PlantedTexts, np.ndarray]:
    cache.mkdir(parents=True, exist_ok=True)
    parts, sources = [], []
    for number, path in enumerate(files):
        target = cache / f"planted-{path.name.split('.')[0]}-{tagger.hash[:8]}-{rows}.safetensors"
        if not target.exists():
            texts = _sample(path, rows)
            decode_planted(tagger, texts, seed=number).save(target)
        parts.append(PlantedTexts.load(target))
        sources += [number] * len(parts[-1])
        click.echo(f"{path.name}: {len(parts[-1]):,}", err=True)
    return PlantedTexts.join(parts), np.array(sources)


def _sample(path: Path, rows: int) -> list[LabelledText]:
    texts = read_labelled(path).texts
    chosen = np.sort(np.random.default_rng(0).permutation(len(texts))[:rows])
    return [texts[i] for i in chosen.tolist()]


def _trials(data: PlantedTexts, count: int, *, size: int, share: float, fdr: str, most: int = 10**6) -> list[Trial]:
    made = []
    for seed in range(count):
        rng = np.random.default_rng([7, seed])
        part = data if size >= len(data) else data.take(rng.permutation(len(data))[:size])
        made.append(run_trial(part, rng=rng, share=share, fdr=fdr, most_checks=most))
    return made


def _row(made: list[Trial], size: int, share: float, fdr: str) -> None:
    def mean(name: str) -> float:
        return float(np.nanmean([getattr(each, name) for each in made])) if made else float("nan")

    empty = sum(each.listed == 0 for each in made)
    spread = float(np.nanstd([each.precision for each in made])) if empty < len(made) else float("nan")
    fdp = float(np.mean([1 - each.precision if each.listed else 0.0 for each in made]))
    click.echo(
        f"{size:,} | {share:.0%} | {fdr} | {mean('checks'):.0f} ({mean('found_by_checks'):.0f}) | "
        f"{mean('listed'):.0f} | "
        f"{mean('precision'):.1%} ± {spread:.1%} | {mean('recall'):.1%} | "
        f"{mean('plain_precision'):.1%}, {mean('plain_recall'):.1%} | {mean('plain_precision_at_recall'):.1%} | "
        f"{mean('found'):.1%} | realised rate {fdp:.1%}, empty in {empty} of {len(made)}"
    )


def _write_false(
    trial: Trial, data: PlantedTexts, sources: np.ndarray, files: tuple[Path, ...], rows: int, out: Path
) -> None:
    read = {number: _sample(path, rows) for number, path in enumerate(files)}
    with out.open("w", encoding="utf-8") as file:
        for at in trial.false:
            text = read[int(sources[at])][int(data.place[at])]
            spans = [[text.text[s.start : s.end], s.label] for s in text.spans]
            file.write(json.dumps({"text": text.text, "spans": spans}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
