"""A whole training run: files in, model directory out, progress on the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

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

from backend.tagger.checkpoints import CHECKPOINT_FILE
from backend.tagger.corpus import Corpus, build_corpus
from backend.tagger.model import Model, load_model, parameter_count, save_model
from backend.tagger.model_info import ModelInfo
from backend.tagger.training import EpochReport, Trainer, TrainingConfig, evaluate
from backend.tagger.training_data import Material, gather
from backend.tagger.training_texts import fingerprints, joined
from conformal.labels import Scheme


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
    The checkpoint is removed once the model is written. With `start`, training begins with that model's
    weights, and everything that model was trained on counts as seen by this one too.
    """
    screen = console or Console(stderr=True)
    material = gather(data, dev=dev, dev_share=dev_share, scheme=scheme, seed=config.seed, console=screen)
    return train_words(material, out, config=config, name=name, start=start, resume=resume, console=screen)


def train_words(
    material: Material,
    out: Path,
    *,
    config: TrainingConfig,
    name: str = "model",
    start: Model | None = None,
    resume: bool = True,
    console: Console | None = None,
) -> ModelInfo:
    """Train the network of hashed words on what was gathered; see `train_model`."""
    screen = console or Console(stderr=True)
    space, train, known = material.space, material.train, material.known_held
    # Development words are hashed with the rest but only training samples are drawn from.
    corpus = build_corpus([*train, *known], space, features=config.features)
    expressible = sum(origin < len(train) for origin in corpus.origins)
    samples = corpus.samples
    trainer = Trainer(corpus, space, train=samples[:expressible], dev=samples[expressible:], config=config, start=start)
    _say_corpus(screen, trainer, corpus.inexpressible)
    done = trainer.resume(out) if resume else 0
    if done:
        screen.print(f"continuing after epoch {done} of {config.epochs}")
    run_shown(trainer, out, screen, epochs=config.epochs)
    summary: dict[str, Any] = {
        "files": material.files,
        "texts": expressible,
        "repairs": material.repairs,
        "inexpressible": dict(corpus.inexpressible),
        "recipe": {k: v for k, v in asdict(config).items() if k not in {"features", "network"}},
        "threads": torch.get_num_threads(),
        "best_epoch": trainer.best_epoch,
        "dev_share": material.dev_share,
        "start": start.info.hash if start else "",
    }
    seen = fingerprints(text.text for text in [*train, *material.held])
    if start is not None:
        # What the first model learnt from is in these weights too (METHODS 5.4, 8.4).
        summary["ancestors"] = [*start.info.ancestors, start.info.hash]
        seen = joined(start.seen, seen)
    info = ModelInfo(name, space.classes, material.languages, config.features, config.network, summary)
    saved = save_model(trainer.network, out, info=info, seen=seen)
    _say_saved(screen, out, trainer, corpus)
    (out / CHECKPOINT_FILE).unlink(missing_ok=True)
    return saved


def _say_corpus(screen: Console, trainer: Trainer, inexpressible: Counter[str]) -> None:
    tokens = sum(len(sample.words) for sample in trainer.train)
    screen.print(
        f"training on {len(trainer.train):,} texts ({tokens:,} tokens), {len(trainer.dev):,} for development; "
        f"{parameter_count(trainer.network):,} weights",
        highlight=False,
    )
    for reason, count in sorted(inexpressible.items()):
        screen.print(f"left out {count:,} texts' spans: {reason}", highlight=False)


class Running(Protocol):
    """A trainer, as far as showing its progress needs it."""

    def run(
        self, *, checkpoints: Path | None, progress: Callable[[int, int, int, float], None]
    ) -> Iterator[EpochReport]:
        """Train epoch by epoch."""


def run_shown(trainer: Running, out: Path, screen: Console, *, epochs: int) -> None:
    """Train to the end, with a bar for the epoch under way and a line for each that is over."""
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
                task = bars.add_task(f"epoch {epoch}/{epochs}", total=steps, loss=loss)
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
