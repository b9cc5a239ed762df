"""`surespan train`: a tagger from labelled files."""

from __future__ import annotations

from pathlib import Path

import click

_SHARE = click.FloatRange(0.0, 1.0)


@click.command("train")
@click.option(
    "--data",
    "data",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    multiple=True,
    required=True,
    help="A labelled file (CoNLL columns or a Label Studio export, .gz too). Repeat for several.",
)
@click.option(
    "--dev",
    "dev",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    multiple=True,
    help="A labelled file for early stopping. Without it, --dev-share of each data file is held out.",
)
@click.option("--dev-share", type=_SHARE, default=0.03, show_default=True, help="Share of each data file held out.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Directory for the model; checkpoints go there too while training.",
)
@click.option("--name", default=None, help="Name of the model. Default: the name of the --out directory.")
@click.option(
    "--start-from",
    default=None,
    help="Begin with the weights of `bundled` or of a model directory instead of random ones.",
)
@click.option("--epochs", type=click.IntRange(1), default=8, show_default=True)
@click.option(
    "--patience",
    type=click.IntRange(1),
    default=4,
    show_default=True,
    help="Stop after this many epochs without a better development F1.",
)
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=1, show_default=True)
@click.option(
    "--threads",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Threads of torch. The same number gives the same weights.",
)
@click.option("--batch-tokens", type=click.IntRange(1), default=1_500, show_default=True)
@click.option(
    "--rate",
    type=click.FloatRange(0.0, min_open=True),
    default=2e-3,
    show_default=True,
    help="Largest learning rate of the layers.",
)
@click.option(
    "--table-rate",
    type=click.FloatRange(0.0, min_open=True),
    default=4e-3,
    show_default=True,
    help="Largest learning rate of the hashed tables.",
)
@click.option("--dropout", type=click.FloatRange(0.0, 1.0, max_open=True), default=0.3, show_default=True)
@click.option(
    "--word-dropout",
    type=click.FloatRange(0.0, 1.0, max_open=True),
    default=0.15,
    show_default=True,
    help="Share of words known by affixes and n-grams only, drawn anew for each batch.",
)
@click.option(
    "--feature-dropout",
    type=click.FloatRange(0.0, 1.0, max_open=True),
    default=0.2,
    show_default=True,
    help="Dropout of single word features.",
)
@click.option("--upper", type=_SHARE, default=0.05, show_default=True, help="Share of texts trained on in capitals.")
@click.option("--lower", type=_SHARE, default=0.06, show_default=True, help="Share trained on in lower case.")
@click.option("--title", type=_SHARE, default=0.03, show_default=True, help="Share trained on in title case.")
@click.option(
    "--clause", type=_SHARE, default=0.2, show_default=True, help="Share that adds an entity-free clause cut from it."
)
@click.option("--cut", type=_SHARE, default=0.05, show_default=True, help="Share added with its entities cut out.")
@click.option(
    "--scheme",
    type=click.Choice(["IOB2", "IOB1", "BIOES", "IO"]),
    default=None,
    help="Tagging scheme of column files. IOB2 and BIOES are recognised; IOB1 must be named.",
)
@click.option("--resume/--fresh", default=True, show_default=True, help="Continue from a checkpoint in --out.")
def command(
    *,
    data: tuple[Path, ...],
    dev: tuple[Path, ...],
    dev_share: float,
    out: Path,
    name: str | None,
    start_from: str | None,
    scheme: str | None,
    threads: int,
    resume: bool,
    upper: float,
    lower: float,
    title: float,
    clause: float,
    cut: float,
    **recipe: float,
) -> None:
    """Train a tagger on labelled files.

    Tokenised files become text by joining their words with one space, and pass through the live tokenizer.
    The model is written to OUT/model.safetensors. Killed, the same command continues after the last finished epoch.
    """
    # torch takes a second or two to import, which `surespan train --help` need not wait for.
    import torch

    from backend.tagger.corpus import Variation
    from backend.tagger.errors import TaggerError
    from backend.tagger.model import load_model
    from backend.tagger.tagger import model_directory
    from backend.tagger.training import TrainingConfig
    from backend.tagger.training_run import train_model
    from conformal.labels import Scheme

    torch.set_num_threads(threads)
    try:
        shares = Variation(upper=upper, lower=lower, title=title, clause=clause, cut=cut)
        config = TrainingConfig(variation=shares, **recipe)  # type: ignore[arg-type]
        train_model(
            data,
            out,
            dev=dev,
            dev_share=dev_share,
            name=name or out.resolve().name,
            scheme=None if scheme is None else Scheme(scheme),
            config=config,
            start=None if start_from is None else load_model(model_directory(start_from)),
            resume=resume,
        )
    except TaggerError as error:
        raise click.ClickException(str(error)) from None
