"""`surespan train`: a tagger from labelled files, or from the labels of a project."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from backend.commands.errors import reported
from backend.settings import load_settings
from backend.tagger.errors import TaggerError

if TYPE_CHECKING:  # torch takes seconds to import
    from backend.tagger.training_data import Material

_SHARE = click.FloatRange(0.0, 1.0)
# What each kind of model has as its default where both have the option.
_SHARED = {
    "epochs": (8, 5),
    "patience": (4, 2),
    "batch_tokens": (1_500, 1_000),
    "rate": (2e-3, 1e-3),
    "dropout": (0.3, 0.3),
}
_WORDS_ONLY = (
    "table_rate",
    "word_dropout",
    "feature_dropout",
    "upper",
    "lower",
    "title",
    "clause",
    "cut",
    "start_from",
)
# What the linear learner has no use for: given on the command line, they ask for the network.
_NETWORK_ONLY = (*_SHARED, "dev_share", *(name for name in _WORDS_ONLY if name != "start_from"))
_ENCODER_ONLY = ("freeze", "encoder_rate", "layer_decay", "accumulate", "hidden", "warm_up")


def _default(name: str) -> str:
    words, encoder = _SHARED[name]
    return f"[default: {words}; {encoder} with --encoder]" if words != encoder else f"[default: {words}]"


@click.command("train")
@click.option(
    "--data",
    "data",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    multiple=True,
    help="A labelled file (CoNLL columns or a Label Studio export, .gz too). Repeat for several.",
)
@click.option("--project", default=None, help="Id of a project: train on its confirmed labels except audit tasks.")
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
    help="Directory for the model; checkpoints go there too while training. Needed without --serve.",
)
@click.option(
    "--serve",
    is_flag=True,
    help="With --project: train as the service does, keep the model in the database, and let it serve if it is better.",
)
@click.option("--name", default=None, help="Name of the model. Default: the name of the --out directory.")
@click.option(
    "--start-from",
    default=None,
    help="Begin with `bundled`, `nothing` or a model directory. The network takes its weights [default: nothing], the "
    "linear learner what it says about each word [default: bundled].",
)
@click.option(
    "--learner",
    type=click.Choice(["auto", "linear", "network"]),
    default="auto",
    show_default=True,
    help="`linear` learns from a few dozen texts in seconds; `auto` takes it for up to 3,000 texts, unless --encoder "
    "or an option of the network is given.",
)
@click.option(
    "--encoder",
    default=None,
    help="Train an encoder (a folder or a hub id) with a BiLSTM and a CRF on top instead of the small network.",
)
@click.option("--freeze", is_flag=True, help="Leave the encoder as it is; only the layers on top of it learn.")
@click.option(
    "--encoder-rate",
    type=click.FloatRange(0.0, min_open=True),
    default=1e-4,
    show_default=True,
    help="Largest learning rate of the encoder's uppermost layer.",
)
@click.option(
    "--layer-decay",
    type=click.FloatRange(0.0, 1.0, min_open=True),
    default=0.9,
    show_default=True,
    help="Learning rate of each layer of the encoder, as a share of that of the layer above.",
)
@click.option("--accumulate", type=click.IntRange(1), default=1, show_default=True, help="Batches that make one step.")
@click.option("--hidden", type=click.IntRange(1), default=192, show_default=True, help="Width of the BiLSTM.")
@click.option(
    "--warm-up",
    type=click.FloatRange(0.0, 1.0, max_open=True),
    default=0.1,
    show_default=True,
    help="Share of the steps over which an encoder's rates rise.",
)
@click.option("--epochs", type=click.IntRange(1), help=f"Rounds over the data. {_default('epochs')}")
@click.option(
    "--patience",
    type=click.IntRange(1),
    help=f"Stop after this many epochs without a better development F1. {_default('patience')}",
)
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=1, show_default=True)
@click.option(
    "--threads",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Threads of torch. The same number gives the same weights.",
)
@click.option(
    "--batch-tokens",
    type=click.IntRange(1),
    help=f"Tokens (pieces, for an encoder) per batch. {_default('batch_tokens')}",
)
@click.option(
    "--rate",
    type=click.FloatRange(0.0, min_open=True),
    help=f"Largest learning rate of the layers (except an encoder's). {_default('rate')}",
)
@click.option(
    "--table-rate",
    type=click.FloatRange(0.0, min_open=True),
    default=4e-3,
    show_default=True,
    help="Largest learning rate of the hashed tables.",
)
@click.option("--dropout", type=click.FloatRange(0.0, 1.0, max_open=True), help=_default("dropout"))
@click.option(
    "--word-dropout",
    type=click.FloatRange(0.0, 1.0, max_open=True),
    default=0.15,
    show_default=True,
    help="Share of words known by affixes and n-grams only, drawn again for each batch.",
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
    "--clause", type=_SHARE, default=0.2, show_default=True, help="Share of texts with an entity-free clause added."
)
@click.option("--cut", type=_SHARE, default=0.05, show_default=True, help="Share repeated with its entities cut out.")
@click.option(
    "--scheme",
    type=click.Choice(["IOB2", "IOB1", "BIOES", "IO"]),
    default=None,
    help="Tagging scheme of column files. IOB2 and BIOES are recognised; IOB1 must be named.",
)
@click.option("--resume/--fresh", default=True, show_default=True, help="Continue from a checkpoint in --out.")
@click.pass_context
@reported
def command(ctx: click.Context, /, **options: Any) -> None:  # noqa: ANN401 - click's options
    """Train a tagger on labelled files, or on the confirmed labels of a project.

    Tokenised files become text by joining their words with one space, and pass through the live tokenizer.
    The model is written to OUT/model.safetensors. If it is killed, the same command continues after the last finished
    epoch; with --encoder, after the last 200 steps. The linear learner begins again: it takes seconds.

    With --project, labels of audit and blind tasks are left to calibration. With --serve the model becomes the
    project's own if it is better, without a restart. Without it, what was used is recorded, and the project's labels
    are scored under the new model as soon as a process runs with SURESPAN_MODEL=OUT.
    """
    given = {name for name in options if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE}
    wrong = sorted(given & set(_WORDS_ONLY if options["encoder"] else _ENCODER_ONLY))
    if wrong:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in wrong)
        raise click.UsageError(f"{flags} {'cannot be used' if options['encoder'] else 'is only used'} with --encoder")
    network_asked = sorted(given & set(_NETWORK_ONLY))
    if options["learner"] == "linear" and (network_asked or options["encoder"]):
        named = ", ".join(f"--{name.replace('_', '-')}" for name in (network_asked or ["encoder"]))
        raise click.UsageError(f"{named} cannot be used with --learner linear")
    if options["learner"] == "auto" and network_asked:
        options["learner"] = "network"
    if options.pop("serve"):
        _serve(options["project"], others=given - {"project", "serve"})
        return
    if not options["data"] and options["project"] is None:
        raise click.UsageError("give --data FILE or --project ID")
    if options["out"] is None:
        raise click.UsageError("give --out DIR, or --project ID with --serve")
    for name, (words, encoder) in _SHARED.items():
        if options[name] is None:
            options[name] = encoder if options["encoder"] else words
    # torch takes a second or two to import, which `surespan train --help` need not wait for.
    import torch

    torch.set_num_threads(options["threads"])
    try:
        _train(options)
    except TaggerError as error:
        raise click.ClickException(str(error)) from None


def _serve(project: str | None, *, others: set[str]) -> None:
    """Do here what the service's worker does when a training is due, at once."""
    if project is None or others:
        raise click.UsageError(
            "--serve is used with --project ID alone; what the model starts from is SURESPAN_LEARN_FROM"
        )
    from backend.learning.now import train_now
    from backend.models.report import LICENCE
    from backend.store import open_store
    from backend.tagger.model_files import BUNDLED

    settings = load_settings()
    screen = Console(stderr=True)
    with open_store(settings.database_url) as store, screen.status("starting") as status:
        result = train_now(store, project, settings=settings, say=status.update)
    if "skipped" in result:
        raise click.ClickException(str(result["skipped"]))
    served = "it serves from now on" if result["serves"] else "the model before it goes on"
    screen.print(
        f"{result['model']} learnt from {result['labels']:,} labels; {served}: {result['why']}", highlight=False
    )
    if result["base"] == BUNDLED:
        screen.print(f"it {LICENCE}; SURESPAN_LEARN_FROM=nothing does without", highlight=False)


def _train(options: dict[str, Any]) -> None:
    from backend.tagger.training_data import gather
    from conformal.labels import Scheme

    screen = Console(stderr=True)
    material = gather(
        options["data"],
        dev=options["dev"],
        dev_share=options["dev_share"],
        scheme=None if options["scheme"] is None else Scheme(options["scheme"]),
        seed=options["seed"],
        console=screen,
    )
    if options["project"] is None:
        _learn(material, options)
        return
    from backend.labels.training_sets import add_labels, hand_over, read_project
    from backend.store import open_store
    from backend.tagger.identity import ModelHeader

    with open_store(load_settings().database_url) as store:
        labels = read_project(store, options["project"])
        screen.print(f"project {labels.project.uid}: {labels.summary()}", highlight=False)
        share = 0.0 if options["dev"] else max(options["dev_share"], 0.1)
        used = add_labels(material, labels, dev_share=share, seed=options["seed"])
        name, digest, classes = _learn(material, options)
        count = hand_over(store, labels.project, model=ModelHeader(name, digest, classes), used=used)
    screen.print(
        f"recorded {count:,} tasks as trained on; start the service with SURESPAN_MODEL={options['out']} and it scores "
        "the project's labels under the new model, the old one serving until that is done",
        highlight=False,
    )


def _learn(material: Material, options: dict[str, Any]) -> tuple[str, str, tuple[str, ...]]:
    """Train what the options say; return name, hash and classes of the saved model."""
    out: Path = options["out"]
    name = options["name"] or out.resolve().name
    if not options["encoder"] and options["learner"] != "network":
        from backend.tagger.linear.fitting import Recipe
        from backend.tagger.linear.training_run import suits_linear, train_linear
        from backend.tagger.model_files import BUNDLED

        if options["learner"] == "linear" or suits_linear(material):
            linear = train_linear(
                material,
                out,
                name=name,
                start=options["start_from"] or BUNDLED,
                recipe=Recipe(seed=options["seed"]),
            )
            return linear.name, linear.hash, linear.classes
    common = {key: options[key] for key in (*_SHARED, "seed")}
    if options["encoder"]:
        from backend.tagger.encoder.network import HeadConfig
        from backend.tagger.encoder.training import EncoderTraining
        from backend.tagger.encoder.training_run import train_encoder

        saved = train_encoder(
            material,
            out,
            encoder=options["encoder"],
            config=EncoderTraining(
                **common,
                accumulate=options["accumulate"],
                encoder_rate=options["encoder_rate"],
                decay=options["layer_decay"],
                warm_up=options["warm_up"],
                head=HeadConfig(hidden=options["hidden"], frozen=options["freeze"]),
            ),
            name=name,
            resume=options["resume"],
        )
        return saved.name, saved.hash, saved.classes
    from backend.tagger.corpus import Variation
    from backend.tagger.model import load_model
    from backend.tagger.model_files import model_directory
    from backend.tagger.training import TrainingConfig
    from backend.tagger.training_run import train_words

    shares = Variation(**{key: options[key] for key in ("upper", "lower", "title", "clause", "cut")})
    start = None if options["start_from"] == "nothing" else options["start_from"]
    small = train_words(
        material,
        out,
        config=TrainingConfig(
            variation=shares,
            **common,
            **{key: options[key] for key in ("table_rate", "word_dropout", "feature_dropout")},
        ),
        name=name,
        start=None if start is None else load_model(model_directory(start)),
        resume=options["resume"],
    )
    return small.name, small.hash, small.classes
