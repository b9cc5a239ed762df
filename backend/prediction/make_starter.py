"""Make the starter calibrations of a model from labelled files: `python -m backend.prediction.make_starter`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from backend.prediction.scoring import ScoredText, score_labelled
from backend.prediction.starter import Starter, save_starter
from backend.tagger.folded import restrict
from backend.tagger.loading import load_tagger
from backend.tagger.model_files import BUNDLED, model_directory
from backend.tagger.readers import LabelledText, read_labelled
from backend.tagger.tagger import Tagger
from conformal.risk import ErrorRows
from conformal.rows import EntityRows, TaskRows, task_rows


def make_starter(tagger: Tagger, files: Sequence[Path], *, per_file: int, seed: int, about: str) -> Starter:
    """Score a random sample of each labelled file under the tagger."""
    rng = np.random.default_rng(seed)
    scored: list[ScoredText] = []
    for path in files:
        texts = [_within(text, tagger) for text in read_labelled(path).texts]
        chosen = np.sort(rng.permutation(len(texts))[:per_file])
        scored += score_labelled(tagger, [texts[i] for i in chosen.tolist()])
    errors = ErrorRows.of([item.errors for item in scored])
    languages = tuple(item.language for item in scored)
    return Starter(tagger.hash, tagger.space.classes, *rows_of(scored), about, errors, languages)


def _within(text: LabelledText, tagger: Tagger) -> LabelledText:
    """Leave out entities of classes that are folded into O: for this label space they are none."""
    return replace(text, spans=tuple(span for span in text.spans if span.label in tagger.space.classes))


def rows_of(scored: Sequence[ScoredText]) -> tuple[TaskRows, EntityRows]:
    """Collect scored texts into calibration rows; each text is a task of its own."""
    units = [(task, number, unit) for task, item in enumerate(scored) for number, unit in enumerate(item.units)]
    several = any(len(item.units) > 1 for item in scored)
    tasks = task_rows(
        [unit.cell for _, _, unit in units],
        [unit.scores for _, _, unit in units],
        task=[task for task, _, _ in units] if several else None,
        unit=[number for _, number, _ in units] if several else None,
    )
    parts = [unit.scores.entities for _, _, unit in units]
    owners = np.repeat([task for task, _, _ in units], [len(part) for part in parts])
    joined = EntityRows.join(parts).with_tasks(owners)
    return tasks, joined if several else replace(joined, unit=None)


def _main() -> None:
    parser = argparse.ArgumentParser(description="Make the starter calibrations of a model from labelled files.")
    parser.add_argument("--model", default=BUNDLED, help="the model they are for, and where they are put")
    parser.add_argument(
        "--data", type=Path, nargs="+", required=True, help="labelled files; a sample of each is scored"
    )
    parser.add_argument("--per-file", type=int, default=1500, help="labelled texts taken from each file")
    parser.add_argument("--classes", action="append", default=[], help="also for these classes only, as A,B,C")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    tagger = load_tagger(options.model)
    about = f"{options.per_file} texts of each of: {', '.join(path.name for path in options.data)}"
    for classes in [tagger.space.classes, *(names.split(",") for names in options.classes)]:
        starter = make_starter(
            restrict(tagger, classes), options.data, per_file=options.per_file, seed=options.seed, about=about
        )
        path = save_starter(starter, model_directory(options.model))
        size = f"{path.stat().st_size:,} B"
        print(f"{path.name}: {starter.tasks.task_count:,} tasks, {len(starter.tasks):,} units, {size}")  # noqa: T201


if __name__ == "__main__":
    _main()
