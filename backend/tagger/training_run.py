"""A whole training run: files in, model directory out, progress on the terminal."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from backend.tagger.corpus import Corpus, build_corpus
from backend.tagger.errors import InvalidTraining
from backend.tagger.model import Model, ModelInfo, load_model, parameter_count, save_model
from backend.tagger.readers import LabelledText, read_labelled
from backend.tagger.seen import fingerprints
from backend.tagger.training import CHECKPOINT_FILE, Trainer, TrainingConfig, evaluate
from conformal.labels import LabelSpace, Scheme


def train_model(
    data: Sequence[Path],
    out: Path,
    *,
    config: TrainingConfig,
    dev: Sequence[Path] = (),
    dev_share: float = 0.03,
    name: str = "model",
    scheme: Scheme | None = None,
    start: Model | None = None,
    resume: bool = True,
    console: Console | None = None,
) -> ModelInfo:
    """Read, train with early stopping, save; return what the saved model says about itself.

    Classes are those of the training files, sorted.
    The checkpoint is removed once the model is written. With `start`, training begins with that model's weights.
    """
    screen = console or Console(stderr=True)
    held: list[LabelledText] = []
    train: list[LabelledText] = []
    rng = np.random.default_rng([config.seed, 7])
    files = [_file_summary(path) for path in data]
    repairs = 0
    for path in data:
        reading = read_labelled(path, scheme=scheme)
        repairs += reading.repairs
        screen.print(f"{path.name}: {reading.summary()}", highlight=False)
        if dev:
            train += reading.texts
        else:
            out_of = rng.random(len(reading.texts)) < dev_share
            held += [text for text, kept in zip(reading.texts, out_of, strict=True) if kept]
            train += [text for text, kept in zip(reading.texts, out_of, strict=True) if not kept]
    for path in dev:
        reading = read_labelled(path, scheme=scheme)
        screen.print(f"{path.name} (development): {reading.summary()}", highlight=False)
        held += reading.texts
    classes = sorted({span.label for text in train for span in text.spans})
    if not classes:
        raise InvalidTraining("expected entities in the data files, got none; check the tag column")
    space = LabelSpace(classes)
    known = [text for text in held if all(span.label in space.classes for span in text.spans)]
    if not known:
        raise InvalidTraining("expected development texts, got none; raise --dev-share or give --dev")
    # Development words are hashed with the rest but only training samples are drawn from.
    corpus = build_corpus([*train, *known], space, features=config.features)
    expressible = sum(origin < len(train) for origin in corpus.origins)
    samples = corpus.samples
    trainer = Trainer(corpus, space, train=samples[:expressible], dev=samples[expressible:], config=config, start=start)
    _say_corpus(screen, trainer, corpus.inexpressible)
    done = trainer.resume(out) if resume else 0
    if done:
        screen.print(f"continuing after epoch {done} of {config.epochs}")
    _run(trainer, out, screen)
    summary: dict[str, Any] = {
        "files": files,
        "texts": expressible,
        "repairs": repairs,
        "inexpressible": dict(corpus.inexpressible),
        "recipe": {k: v for k, v in asdict(config).items() if k not in {"features", "network"}},
        "threads": torch.get_num_threads(),
        "best_epoch": trainer.best_epoch,
        "dev_share": 0.0 if dev else dev_share,
        "start": start.info.hash if start else "",
    }
    info = ModelInfo(name, space.classes, _languages(train), config.features, config.network, summary)
    saved = save_model(trainer.network, out, info=info, seen=fingerprints(text.text for text in [*train, *held]))
    _say_saved(screen, out, trainer, corpus)
    (out / CHECKPOINT_FILE).unlink(missing_ok=True)
    return saved


def _file_summary(path: Path) -> dict[str, str]:
    return {"name": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def _languages(texts: Sequence[LabelledText]) -> tuple[str, ...]:
    return tuple(sorted({text.language for text in texts if text.language}))


def _say_corpus(screen: Console, trainer: Trainer, inexpressible: Counter[str]) -> None:
    tokens = sum(len(sample.words) for sample in trainer.train)
    screen.print(
        f"training on {len(trainer.train):,} texts ({tokens:,} tokens), {len(trainer.dev):,} for development; "
        f"{parameter_count(trainer.network):,} weights",
        highlight=False,
    )
    for reason, count in sorted(inexpressible.items()):
        screen.print(f"left out {count:,} texts' spans: {reason}", highlight=False)


def _run(trainer: Trainer, out: Path, screen: Console) -> None:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=screen, disable=not screen.is_terminal) as bars:
        task: TaskID | None = None

        def advance(epoch: int, step: int, steps: int, loss: float) -> None:
            nonlocal task
            if step == 1 or task is None:
                task = bars.add_task(f"epoch {epoch}/{trainer.config.epochs}", total=steps, loss=loss)
            bars.update(task, completed=step, loss=loss)

        for report in trainer.run(checkpoints=out, progress=advance):
            dev = report.dev
            bars.console.print(
                f"epoch {report.epoch}: loss {report.loss:.4f}, development precision {dev.precision:.4f} "
                f"recall {dev.recall:.4f} F1 {dev.f1:.4f}{' (best)' if report.best else ''}",
                highlight=False,
            )


def _say_saved(screen: Console, out: Path, trainer: Trainer, corpus: Corpus) -> None:
    """Load what was written and measure it: the figure that counts is the one after quantisation."""
    network, info, _ = load_model(out)
    counts = evaluate(network, corpus, info.space, samples=trainer.dev)
    screen.print(f"saved {info.name} ({info.hash[:8]}): development F1 {counts.f1:.4f} as stored", highlight=False)
