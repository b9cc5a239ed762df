"""The starter calibration beside the bundled model: scores of labelled Wikipedia sentences, numbers only.

It lets a first prediction have sets of sensible size. It is not the user's data, so its guarantee is `borrowed`: no
promise. Made by `python -m backend.prediction.make_starter`; the command is in the model card.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from backend.domain.flag_rule import RiskRule
from backend.domain.guarantee import Guarantee
from backend.errors import InvalidStarter
from backend.prediction.calibration import STARTER_VERSION, Calibration
from backend.tagger.tagger import Tagger
from conformal.risk import ErrorRows, RiskLevels, fit_levels
from conformal.rows import EntityRows, TaskRows
from conformal.scores import Method
from conformal.thresholds import calibrate

FORMAT = "surespan-starter"
VERSION = 1
UNITS = 2  # the same with the tasks of units
_LONGEST = 200  # characters of a file name that classes may take


def starter_name(classes: Sequence[str]) -> str:
    """Return the file name of the starter over these classes; a model may have one for each set of classes.

    >>> starter_name(["PER", "LOC"])
    'starter.LOC+PER.safetensors'
    >>> starter_name(["in/out"])
    'starter.in%2Fout.safetensors'
    """
    joined = "+".join(quote(name, safe="", errors="replace") for name in sorted(classes))
    if len(joined) > _LONGEST:  # people name classes as they like, file systems do not
        joined = hashlib.sha256(joined.encode()).hexdigest()
    return f"starter.{joined}.safetensors"


@dataclass(frozen=True)
class Starter:
    """Calibration rows that belong to one model, by its hash."""

    model_hash: str
    classes: tuple[str, ...]
    tasks: TaskRows
    entities: EntityRows
    about: str
    errors: ErrorRows | None = None  # of the best labelings, a row for each task
    languages: tuple[str, ...] = ()  # of those rows


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
        "entity.place": starter.entities.scored.class_rank.astype(np.int8),
        "entity.rank": starter.entities.rank.astype(np.int32),
    }
    if starter.tasks.unit is not None:
        arrays |= {
            "task.number": starter.tasks.numbers.astype(np.int32),
            "task.unit": starter.tasks.unit.astype(np.int32),
            "entity.unit": starter.entities.units.astype(np.int32),
        }
    languages = sorted(set(starter.languages))
    if starter.errors is not None:
        arrays |= {
            "risk.language": np.array([languages.index(each) for each in starter.languages], np.int16),
            "risk.entities": starter.errors.entities.astype(np.int32),
            "risk.best": starter.errors.best.astype(np.int32),
            "error.task": starter.errors.task.astype(np.int32),
            "error.level": starter.errors.level,
            "error.false": starter.errors.false.astype(np.int8),
        }
    header = {
        "format": FORMAT,
        "version": VERSION if starter.tasks.unit is None else UNITS,
        "model_hash": starter.model_hash,
        "classes": list(starter.classes),
        "cells": cells,
        "languages": languages,
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
            if header.get("format") != FORMAT or header.get("version") not in (VERSION, UNITS):
                raise InvalidStarter(
                    f"expected a starter calibration of version {VERSION} or {UNITS} in {path.name}, "
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
        task=arrays.get("task.number"),
        unit=arrays.get("task.unit"),
    )
    entities = EntityRows.of(
        arrays["entity.task"],
        [labels[i] for i in arrays["entity.label"].tolist()],
        probability=arrays["entity.probability"],
        cumulative=arrays["entity.cumulative"],
        class_rank=arrays["entity.place"],
        rank=arrays["entity.rank"],
        unit=arrays.get("entity.unit"),
    )
    errors, languages = None, ()
    if "error.level" in arrays:  # not in those of earlier releases
        languages = tuple(header["languages"][i] for i in arrays["risk.language"].tolist())
        errors = ErrorRows(
            arrays["risk.entities"].astype(np.int64),
            arrays["risk.best"].astype(np.int64),
            None,
            arrays["error.task"].astype(np.int64),
            arrays["error.level"],
            arrays["error.false"].astype(np.bool_),
        )
    return Starter(header["model_hash"], tuple(header["classes"]), tasks, entities, header["about"], errors, languages)


def has_starter(directory: Path, *, model_hash: str, classes: Sequence[str]) -> bool:
    """Whether a starter calibration of this model over these classes lies in a directory; reads only its header."""
    path = directory / starter_name(classes)
    try:
        with safe_open(path, framework="numpy") as file:
            header = json.loads((file.metadata() or {}).get("surespan", "{}"))
    except (OSError, SafetensorError, json.JSONDecodeError):
        return False
    known = (header.get("format"), header.get("model_hash"), header.get("classes"))
    return header.get("version") in (VERSION, UNITS) and known == (FORMAT, model_hash, list(classes))


def starter_calibration(
    tagger: Tagger, directory: Path, *, method: Method | None = None, n_min: int = 100, flags: RiskRule | None = None
) -> Calibration:
    """Return the starter calibration that lies beside a model, else one without any label.

    A starter made for other weights or other classes is not used: its scores say nothing about these.

    Args:
        flags: the risk that flags control; None flags every span with several labels.
    """
    path = directory / starter_name(tagger.space.classes)
    if path.exists():
        starter = load_starter(path)
        if starter.model_hash == tagger.hash and starter.classes == tagger.space.classes:
            thresholds = calibrate(starter.tasks, starter.entities, classes=starter.classes, method=method, n_min=n_min)
            risk = None if flags is None else starter_levels(starter, flags, n_min=n_min)
            return Calibration(thresholds, Guarantee.BORROWED, STARTER_VERSION, risk=risk)
    nothing = TaskRows.of([], np.zeros(0))
    thresholds = calibrate(nothing, classes=tagger.space.classes, method=method, n_min=n_min, allow_empty=True)
    empty = None if flags is None else fit_levels(ErrorRows.of([]), [], max_error=flags.max_error, sure=flags.sure)
    return Calibration(thresholds, Guarantee.NONE, STARTER_VERSION, risk=empty)


def starter_levels(starter: Starter, flags: RiskRule, *, n_min: int) -> RiskLevels:
    """Return the levels of flags that a starter's labels allow; of one without errors none."""
    errors = ErrorRows.of([]) if starter.errors is None else starter.errors
    return fit_levels(errors, starter.languages, max_error=flags.max_error, sure=flags.sure, n_min=n_min)
