"""`surespan fit-transitions`: which label follows which, learnt from labelled files."""

from __future__ import annotations

import json
from pathlib import Path

import click

from backend.tagger.errors import TaggerError


@click.command("fit-transitions")
@click.option("--model", required=True, help="A token-classification checkpoint: its folder or its hub id.")
@click.option(
    "--data",
    "data",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    multiple=True,
    required=True,
    help="A labelled file (CoNLL columns or a Label Studio export, .gz too). Repeat for several.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Folder for the fitted part. Default: beside the checkpoint; needed for a hub id, whose cache is left alone.",
)
@click.option(
    "--map",
    "mapping",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    default=None,
    help="What the checkpoint's labels mean (JSON). Default: its own surespan.json, if there is one.",
)
@click.option("--limit", type=click.IntRange(1), default=None, help="Use the first texts of each file only.")
@click.option(
    "--scheme",
    type=click.Choice(["IOB2", "IOB1", "BIOES", "IO"]),
    default=None,
    help="Tagging scheme of column files. IOB2 and BIOES are recognised; IOB1 must be named.",
)
def command(
    *,
    model: str,
    data: tuple[Path, ...],
    out: Path | None,
    mapping: Path | None,
    limit: int | None,
    scheme: str | None,
) -> None:
    """Fit transitions and a temperature of a checkpoint on labelled files.

    They are saved beside the checkpoint as surespan-chain.safetensors and used from then on; the model's hash
    changes, so its thresholds are fitted again. The texts used are remembered: they are not evidence about the model.
    """
    from backend.tagger.hf.chain import save_chain
    from backend.tagger.hf.checkpoint import CHAIN_FILE, describe_checkpoint, find_folder
    from backend.tagger.hf.fitting import fit_chain
    from backend.tagger.hf.loading import load_checkpoint_tagger
    from backend.tagger.hf.mapping import MAPPING_FILE
    from backend.tagger.options import TaggerOptions
    from backend.tagger.readers import read_labelled
    from conformal.labels import Scheme

    try:
        folder = find_folder(model)
        if out is None and not Path(model).is_dir():
            raise click.UsageError("give --out FOLDER: the cache of the hub is left as it is")
        options = TaggerOptions(mapping=mapping)
        tagger = load_checkpoint_tagger(model, options=options)
        labels = describe_checkpoint(model, mapping_file=mapping).labels
        texts = [
            text
            for path in data
            for text in read_labelled(path, scheme=None if scheme is None else Scheme(scheme)).texts[:limit]
        ]
        fitted, report = fit_chain(tagger.model, labels, texts=texts)
        place = out or folder
        if place.resolve() != folder.resolve() or mapping is not None:
            place.mkdir(parents=True, exist_ok=True)
            said = json.loads(mapping.read_text(encoding="utf-8")) if mapping else _own(folder / MAPPING_FILE)
            if place.resolve() != folder.resolve():
                said.setdefault("checkpoint", model if not Path(model).is_dir() else str(folder.resolve()))
            (place / MAPPING_FILE).write_text(json.dumps(said, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        save_chain(fitted, place / CHAIN_FILE)
        checkpoint = describe_checkpoint(str(place))
    except TaggerError as error:
        raise click.ClickException(str(error)) from None
    click.echo(
        f"{report.sentences:,} sentences; -log P a sentence {report.before:.4f} before, {report.after:.4f} after"
    )
    for reason, count in sorted(report.left_out.items()):
        click.echo(f"left out {count:,} texts: {reason}")
    click.echo(f"temperature {report.temperature:.4f}")
    click.echo(
        f"saved {place / CHAIN_FILE}; the model is now {checkpoint.name}@{checkpoint.hash[:8]}: SURESPAN_MODEL={place}"
    )


def _own(path: Path) -> dict[str, object]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
