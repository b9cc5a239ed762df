"""A prediction on a terminal: coloured entities, amber doubts, ranked labelings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from backend.domain.records import TextSpan
from backend.prediction.prediction import MOST_EXACT, Prediction
from backend.prediction.promise import describe_promise

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
    parts.append(Padding(Text(describe_promise(prediction), style="italic"), (1, 0, 0, 0)))
    if prediction.flags is not None:
        amber = f"Amber: {prediction.flags.sentence}"
        parts.append(Padding(Text(amber, style="italic"), (1, 0, 0, 0)))
    return Group(*parts)


def _marked_text(prediction: Prediction, colours: Mapping[str, str]) -> Text:
    text = Text(prediction.text)
    for start, end, label in prediction.labelings[0].spans:
        text.stylize(f"bold underline {colours[label]}", start, end)
    for span in prediction.spans:
        if span.flagged:
            text.stylize(_AMBER, span.start, span.end)
    return text


def _facts(prediction: Prediction) -> Text:
    sets = prediction.sets
    size = "open" if sets.open else count_labelings(sets.set_size, sets.set_size_log10)
    if len(sets.units) > 1:
        closed = [unit.set_size for unit in sets.units if unit.set_size is not None]
        ones = sum(count == 1 for count in closed)
        size += f" · {len(sets.units)} sentences, {ones} with one labeling, {len(sets.units) - len(closed)} open"
    elif sets.empty:
        size = "empty: nothing is plausible enough, so look here first; the best labeling is shown"
    return Text(
        f"{prediction.language} · stratum {sets.stratum} · pool {sets.pool} (n = {sets.n}) · "
        f"alpha {sets.alpha} · set: {size} · {prediction.guarantee} · {prediction.model_version}",
        style="dim",
    )


def count_labelings(size: int | None, log10: float | None) -> str:
    """Say how many labelings a set has.

    >>> count_labelings(1, 0.0), count_labelings(12, 1.08), count_labelings(10**40, 40.0)
    ('1 labeling', '12 labelings', 'about 10^40 labelings')
    """
    if size is not None and size > MOST_EXACT:
        return f"about 10^{log10 or 0.0:.0f} labelings"
    return "1 labeling" if size == 1 else f"{size} labelings"


def _doubts(prediction: Prediction, colours: Mapping[str, str]) -> Table | None:
    flagged = [span for span in prediction.spans if span.flagged]
    if not flagged:
        return None
    table = Table(title="Needs review", title_justify="left", title_style="bold dark_orange", box=None, pad_edge=False)
    table.add_column("span", style=_AMBER)
    table.add_column("could be (p-value)")
    for span in flagged:
        labels = Text(", ").join(
            Text(f"{held.label} ({held.p_value:.3f})", style=colours.get(held.label, "dim")) for held in span.labels
        )
        table.add_row(
            Text(prediction.text[span.start : span.end]),
            labels if span.labels else Text("nothing at this level", style="dim"),
        )
    return table


def _labelings(prediction: Prediction, colours: Mapping[str, str]) -> Table:
    table = Table(title="Labelings", title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("rank", justify="right")
    table.add_column("probability", justify="right")
    table.add_column("p-value", justify="right")
    table.add_column("entities")
    for labeling in prediction.labelings:
        table.add_row(
            str(labeling.rank),
            f"{labeling.probability:.4f}",
            f"{labeling.p_value:.3f}",
            _entities(prediction.text, labeling.spans, colours),
        )
    hidden = min(prediction.sets.set_size or 0, MOST_EXACT) - len(prediction.sets.labelings)
    if hidden > 0:
        table.add_row("", "", "", Text(f"and {hidden:,} more", style="dim"))
    return table


def _entities(text: str, spans: Sequence[TextSpan], colours: Mapping[str, str]) -> Text:
    if not spans:
        return Text("no entity", style="dim")
    return Text("  ").join(
        Text.assemble((text[start:end], f"bold {colours[label]}"), (f" {label}", colours[label]))
        for start, end, label in spans
    )
