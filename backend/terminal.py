"""A prediction on a terminal: coloured entities, amber doubts, ranked labelings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from backend.predictor import Prediction
from backend.promise import describe
from backend.tagger.spans import CharSpan
from conformal.labels import Span

_COLOURS = ("cyan", "green", "magenta", "blue", "bright_red", "bright_cyan", "bright_green", "bright_magenta")
_AMBER = "black on dark_orange"


def render(prediction: Prediction, classes: Sequence[str]) -> RenderableType:
    """Return the text with its best labeling, the doubtful spans, the ranked labelings and the promise."""
    colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(classes)}
    parts: list[RenderableType] = [_marked_text(prediction, colours), _facts(prediction)]
    doubts = _doubts(prediction, colours)
    if doubts is not None:
        parts.append(Padding(doubts, (1, 0, 0, 2)))
    parts.append(Padding(_labelings(prediction, colours), (1, 0, 0, 2)))
    parts.append(Padding(Text(describe(prediction), style="italic"), (1, 0, 0, 0)))
    return Group(*parts)


def _marked_text(prediction: Prediction, colours: Mapping[str, str]) -> Text:
    text = Text(prediction.tagged.text)
    sets = prediction.sets
    for start, end, label in prediction.char_spans(sets.labelings[0].spans):
        text.stylize(f"bold underline {colours[label]}", start, end)
    for start, end, _ in prediction.char_spans([Span(s.start, s.end, "") for s in sets.spans if s.flagged]):
        text.stylize(_AMBER, start, end)
    return text


def _facts(prediction: Prediction) -> Text:
    sets = prediction.sets
    size = "open" if sets.open else f"{sets.set_size} labelings" if sets.set_size != 1 else "1 labeling"
    if sets.empty:
        size = "empty: nothing is plausible enough, look here first; the best is shown"
    return Text(
        f"{prediction.tagged.language} · stratum {sets.stratum} · pool {sets.pool} (n = {sets.n}) · "
        f"alpha {sets.alpha} · set: {size} · {prediction.guarantee} · {prediction.model_version}",
        style="dim",
    )


def _doubts(prediction: Prediction, colours: Mapping[str, str]) -> Table | None:
    flagged = [span for span in prediction.sets.spans if span.flagged]
    if not flagged:
        return None
    table = Table(title="Needs review", title_justify="left", title_style="bold dark_orange", box=None, pad_edge=False)
    table.add_column("span", style=_AMBER)
    table.add_column("could be (p-value)")
    where = prediction.char_spans([Span(s.start, s.end, "") for s in flagged])
    for span, place in zip(flagged, where, strict=True):
        labels = Text(", ").join(
            Text(f"{held.label} ({held.p_value:.3f})", style=colours.get(held.label, "dim")) for held in span.labels
        )
        table.add_row(
            Text(prediction.tagged.text[place.start : place.end]),
            labels if span.labels else Text("nothing at this level", style="dim"),
        )
    return table


def _labelings(prediction: Prediction, colours: Mapping[str, str]) -> Table:
    table = Table(title="Labelings", title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("rank", justify="right")
    table.add_column("probability", justify="right")
    table.add_column("p-value", justify="right")
    table.add_column("entities")
    for labeling in prediction.sets.labelings:
        spans = prediction.char_spans(labeling.spans)
        table.add_row(
            str(labeling.rank),
            f"{labeling.probability:.4f}",
            f"{labeling.p_value:.3f}",
            _entities(prediction.tagged.text, spans, colours),
        )
    hidden = (prediction.sets.set_size or 0) - len(prediction.sets.labelings)
    if hidden > 0:
        table.add_row("", "", "", Text(f"and {hidden:,} more", style="dim"))
    return table


def _entities(text: str, spans: Sequence[CharSpan], colours: Mapping[str, str]) -> Text:
    if not spans:
        return Text("no entity", style="dim")
    return Text("  ").join(
        Text.assemble((text[start:end], f"bold {colours[label]}"), (f" {label}", colours[label]))
        for start, end, label in spans
    )
