"""`surespan predict`: the sets of a text, or of every line of a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TextIO

import click
from rich.console import Console

from backend.commands.errors import reported
from backend.errors import InvalidInput
from backend.settings import load_settings

_CHUNK = 64


class _Task(NamedTuple):
    text: str
    language: str | None
    name: str | int


@click.command(name="predict")
@click.argument("text", required=False)
@click.option("--input", "source", type=click.File(encoding="utf-8"), help="Read tasks from a JSONL file; - is stdin.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line instead of colours.")
@click.option("--alpha", help="Share of sets that may miss the right labeling. [default: SURESPAN_ALPHA or 0.05]")
@click.option("--model", help="The tagger. [default: SURESPAN_MODEL or the bundled one]")
@click.option("--language", help="Language of the text; identified if not given.")
@click.option("--max-shown", type=click.IntRange(min=1), help="Labelings to list. [default: SURESPAN_MAX_SHOWN or 5]")
@reported
def command(
    text: str | None,
    source: TextIO | None,
    *,
    as_json: bool,
    alpha: str | None,
    model: str | None,
    language: str | None,
    max_shown: int | None,
) -> None:
    """Show the conformal set of TEXT: ranked labelings, and the spans that could carry more than one label.

    Lines of --input are {"text": ...} or Label Studio tasks {"id": ..., "data": {...}}.
    """
    if (text is None) == (source is None):
        raise click.UsageError("expected TEXT or --input FILE, got " + ("neither" if text is None else "both"))
    given = {"alpha": alpha, "model": model, "max_shown": max_shown}
    settings = load_settings(**{name: value for name, value in given.items() if value is not None})
    if source is None:
        tasks: Iterator[_Task] = iter([_Task(text or "", language, text or "")])
    else:
        tasks = _read(source, language)

    from backend.calibration.local_predictor import local_predictor  # numba is imported here, not for --help

    predictor = local_predictor(settings)
    while part := list(islice(tasks, _CHUNK)):
        texts, languages = [task.text for task in part], [task.language for task in part]
        predictions = predictor.predict(texts, languages=languages)
        if as_json:
            for prediction in predictions:
                click.echo(json.dumps(prediction.as_dict(), ensure_ascii=False))
            continue

        from backend.commands.terminal import render

        console = Console(highlight=False)
        for prediction in predictions:
            console.print(render(prediction, predictor.tagger.space.classes))
            if source is not None:
                console.rule(style="dim")


def _read(source: TextIO, language: str | None) -> Iterator[_Task]:
    name = Path(getattr(source, "name", "input")).name
    for number, line in enumerate(source, start=1):
        if not line.strip():
            continue
        where = f"{name}:{number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            raise InvalidInput(f"{where}: expected a JSON object, got something else; one task per line") from None
        if not isinstance(record, dict):
            raise InvalidInput(f"{where}: expected a JSON object, got {type(record).__name__}")
        data = record.get("data", record)
        if not isinstance(data, dict):
            raise InvalidInput(f"{where}: expected an object under 'data', got {type(data).__name__}")
        text = data.get("text")
        if not isinstance(text, str):
            got = "no such key" if "text" not in data else type(text).__name__
            raise InvalidInput(f"{where}: expected text under 'text', got {got}")
        own = data.get("language", language)
        yield _Task(text, own if isinstance(own, str) else language, record.get("id", number))
