"""The starter calibration beside the bundled model: scores of labelled Wikipedia sentences, numbers only.

It lets a first prediction have sets of sensible size. It is not the user's data, so its guarantee is `borrowed`: no
promise. Made by `python -m backend.starter`; the command is in the model card.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from backend.errors import InvalidStarter
from backend.scoring import ScoredText, score_labelled
from backend.tagger.folded import restrict
from backend.tagger.readers import LabelledText, read_labelled
from backend.tagger.tagger import BUNDLED, Tagger, load_tagger, model_directory
from conformal.rows import EntityRows, TaskRows

FORMAT = "surespan-starter"
VERSION = 1


def starter_name(classes: Sequence[str]) -> str:
    """Return the file name of the starter over these classes; a model may have one for each set of classes.

    >>> starter_name(["PER", "LOC"])
    'starter.LOC+PER.safetensors'
    """
    return f"starter.{'+'.join(sorted(classes))}.safetensors"


@dataclass(frozen=True)
class Starter:
    """Calibration rows that belong to one model, by its hash."""

    model_hash: str
    classes: tuple[str, ...]
    tasks: TaskRows
    entities: EntityRows
    about: str


def save_starter(starter: Starter, directory: Path) -> Path:
    """Write the rows beside their model, as safetensors with a self-describing header; return the file."""
    path = directory / starter_name(starter.classes)
    cells = sorted(set(starter.tasks.cells))
    labels = [*starter.classes, "O"]
    position = {name: i for i, name in enumerate(cells)}
    ranks = starter.tasks.ranks
    arrays: dict[str, npt.NDArray[Any]] = {
        "task.cell": np.array([position[cell] for cell in starter.tasks.cells], np.int16),
        "task.log_probability": ranks.log_probability,
        "task.rank": ranks.rank.astype(np.int32),
        "task.cumulative": ranks.cumulative,
        "entity.task": starter.entities.task.astype(np.int32),
        "entity.label": np.array([labels.index(label) for label in starter.entities.labels], np.int8),
        "entity.probability": starter.entities.scored.probability,
        "entity.cumulative": starter.entities.scored.cumulative,
        "entity.place": starter.entities.scored.place.astype(np.int8),
        "entity.rank": starter.entities.rank.astype(np.int32),
    }
    header = {
        "format": FORMAT,
        "version": VERSION,
        "model_hash": starter.model_hash,
        "classes": list(starter.classes),
        "cells": cells,
        "about": starter.about,
    }
    save_file(arrays, path, metadata={"surespan": json.dumps(header, sort_keys=True)})
    return path


def load_starter(path: Path) -> Starter:
    """Read rows written by `save_starter`.

    Raises:
        InvalidStarter: when the file is not one, or of another version.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            header = json.loads((file.metadata() or {}).get("surespan", "{}"))
            if header.get("format") != FORMAT or header.get("version") != VERSION:
                raise InvalidStarter(
                    f"expected a starter calibration of version {VERSION} in {path.name}, "
                    f"got {header.get('format')} {header.get('version')}; install the matching release"
                )
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        raise InvalidStarter(f"expected a readable starter calibration in {path.name}, got: {error}") from None
    cells, labels = header["cells"], [*header["classes"], "O"]
    tasks = TaskRows.of(
        [cells[i] for i in arrays["task.cell"].tolist()],
        arrays["task.log_probability"],
        rank=arrays["task.rank"],
        cumulative=arrays["task.cumulative"],
    )
    entities = EntityRows.of(
        arrays["entity.task"],
        [labels[i] for i in arrays["entity.label"].tolist()],
        probability=arrays["entity.probability"],
        cumulative=arrays["entity.cumulative"],
        place=arrays["entity.place"],
        rank=arrays["entity.rank"],
    )
    return Starter(header["model_hash"], tuple(header["classes"]), tasks, entities, header["about"])


def make_starter(tagger: Tagger, files: Sequence[Path], *, per_file: int, seed: int, about: str) -> Starter:
    """Score a random sample of each labelled file under the tagger."""
    rng = np.random.default_rng(seed)
    scored: list[ScoredText] = []
    for path in files:
        texts = [_within(text, tagger) for text in read_labelled(path).texts]
        chosen = np.sort(rng.permutation(len(texts))[:per_file])
        scored += score_labelled(tagger, [texts[i] for i in chosen.tolist()])
    return Starter(tagger.hash, tagger.space.classes, *rows_of(scored), about)


def _within(text: LabelledText, tagger: Tagger) -> LabelledText:
    """Leave out entities of classes that are folded into O: for this label space they are none."""
    return replace(text, spans=tuple(span for span in text.spans if span.label in tagger.space.classes))


def rows_of(scored: Sequence[ScoredText]) -> tuple[TaskRows, EntityRows]:
    """Collect scored texts into calibration rows; each text is a task of its own."""
    tasks = TaskRows.of(
        [item.cell for item in scored],
        [item.scores.log_probability for item in scored],
        rank=[item.scores.rank for item in scored],
        cumulative=[item.scores.cumulative for item in scored],
        previous=[item.scores.previous for item in scored],
    )
    parts = [item.scores.entities for item in scored]
    joined = EntityRows.join(parts)
    owners = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    return tasks, joined.with_tasks(owners)


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
        print(f"{path.name}: {len(starter.tasks):,} tasks, {len(starter.entities):,} spans, {path.stat().st_size:,} B")  # noqa: T201


if __name__ == "__main__":
    _main()
