"""A whole training run of BERT-BiLSTM-CRF: an encoder and labelled texts in, a model directory out."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from backend.tagger.checkpoints import CHECKPOINT_FILE
from backend.tagger.encoder.network import EncoderNetwork
from backend.tagger.encoder.samples import encode_texts
from backend.tagger.encoder.saved import EncoderInfo, encoder_files, save_encoder
from backend.tagger.encoder.training import EncoderTrainer, EncoderTraining
from backend.tagger.hf.checkpoint import describe_encoder
from backend.tagger.hf.loading import LANGUAGES, load_encoder, load_tokenizer, pick_device, window_limit
from backend.tagger.hf.subwords import Subworder
from backend.tagger.options import TaggerOptions
from backend.tagger.training_data import Material
from backend.tagger.training_run import run_shown
from backend.tagger.training_texts import fingerprints

_LONGEST = 256  # pieces of a window: a sentence that is longer is rare, and training memory grows with it
_MARGIN = 32


def train_encoder(
    material: Material,
    out: Path,
    *,
    encoder: str,
    config: EncoderTraining,
    name: str = "model",
    resume: bool = True,
    console: Console | None = None,
) -> EncoderInfo:
    """Train an encoder with a BiLSTM and a CRF on what was gathered; return what the saved model says about itself.

    `encoder` is a folder or a hub id. The checkpoint is removed once the model is written. Raises InvalidModel and
    InvalidTraining.
    """
    screen = console or Console(stderr=True)
    folder, digest = describe_encoder(encoder)
    space, known = material.space, material.known_held
    subworder = Subworder(load_tokenizer(folder))
    generator = torch.Generator().manual_seed(config.seed)
    base = load_encoder(folder)
    base.requires_grad_(True)
    base.to(pick_device(TaggerOptions()))  # type: ignore[arg-type]
    limit = window_limit(base, subworder, longest=_LONGEST)
    margin = min(_MARGIN, limit // 8)
    network = EncoderNetwork(base, config.head, space, generator=generator)
    train = encode_texts(material.train, space, subworder=subworder, limit=limit, margin=margin)
    dev = encode_texts(known, space, subworder=subworder, limit=limit, margin=margin)
    trainer = EncoderTrainer(
        network, subworder, space, train=train.samples, dev=dev.samples, config=config, origin=digest
    )
    pieces = sum(len(sample.piece.ids) for sample in train.samples)
    learning = sum(weight.numel() for weight in network.parameters() if weight.requires_grad)
    screen.print(
        f"training on {len(train.samples):,} sentences ({pieces:,} pieces), {len(dev.samples):,} for development; "
        f"{learning:,} weights learn",
        highlight=False,
    )
    for reason, count in sorted(train.inexpressible.items()):
        screen.print(f"left out {count:,} texts' spans: {reason}", highlight=False)
    epochs, steps = trainer.resume(out) if resume else (0, 0)
    if epochs or steps:
        screen.print(f"continuing after epoch {epochs} of {config.epochs} and {steps} steps")
    run_shown(trainer, out, screen, epochs=config.epochs)
    summary: dict[str, Any] = {
        "files": material.files,
        "texts": len(set(train.origins)),
        "repairs": material.repairs,
        "inexpressible": dict(train.inexpressible),
        "recipe": asdict(config),
        "threads": torch.get_num_threads(),
        "best_epoch": trainer.best_epoch,
        "dev_share": material.dev_share,
        "encoder": {"name": encoder if not Path(encoder).is_dir() else Path(encoder).resolve().name, "hash": digest},
    }
    languages = material.languages or LANGUAGES
    info = EncoderInfo(name, space.classes, languages, config.head, limit, margin, summary)
    seen = fingerprints(text.text for text in [*material.train, *material.held])
    saved = save_encoder(network, out, info=info, files=encoder_files(folder), seen=seen)
    screen.print(f"saved {saved.name} ({saved.hash[:8]})", highlight=False)
    (out / CHECKPOINT_FILE).unlink(missing_ok=True)
    return saved
