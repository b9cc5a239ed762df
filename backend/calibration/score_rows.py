"""Scores of a labelled text as the rows that the store keeps: a row for each unit, its entities, its errors."""

from __future__ import annotations

from backend.domain.precedence import in_pieces
from backend.domain.records import EntityRow, ErrorRow, SequenceScores, UnitRow
from backend.prediction.scoring import ScoredText, ScoredUnit
from conformal.scores import hash_u

_FAR = 2**31 - 1  # what a column holds; a person's span may lie anywhere


def drawn_unit(project: str, task: str, count: int) -> int:
    """Return the one unit of a task that monitors look at, drawn by a hash of the task alone (METHODS 8.7)."""
    return min(int(hash_u("", project, task, "unit") * count), count - 1)


def unit_rows(item: ScoredText, *, drawn: int = 0) -> list[UnitRow]:
    """Return the units of a scored text as the store keeps them."""
    return [
        UnitRow(
            unit.cell,
            sequence_scores(unit),
            tuple(entity_rows(unit)),
            start=unit.start,
            end=unit.end,
            drawn=number == drawn,
        )
        for number, unit in enumerate(in_pieces(item.units))
    ]


def error_row(item: ScoredText) -> ErrorRow:
    """Return the errors of a text's best labeling as the store keeps them."""
    errors = item.errors
    return ErrorRow(errors.entities, errors.best, missing=errors.missing, false=errors.false)


def sequence_scores(unit: ScoredUnit) -> SequenceScores:
    """Return the scores of a unit's labeling as the store keeps them."""
    scores = unit.scores
    return SequenceScores(
        nll=-scores.log_probability,
        rank=float(scores.rank) if scores.rank else float("inf"),
        cumulative=scores.cumulative,
        entities=unit.entities,
    )


def entity_rows(item: ScoredUnit) -> list[EntityRow]:
    """Return the scores of entities and junk spans as the store keeps them, with their characters.

    One row for each span and class, whatever was drawn; of two that fall together the one that lies on no token
    bounds is kept, which the model cannot express.
    """
    rows = item.scores.entities
    unknown = float("inf")
    kept: dict[tuple[int, int, str], EntityRow] = {}
    for span, (start, end), label, probability, cumulative, class_rank, rank in zip(
        item.scores.token_spans,
        item.char_ranges,
        rows.labels,
        rows.scored.probability.tolist(),
        rows.scored.cumulative.tolist(),
        rows.scored.class_rank.tolist(),
        rows.rank.tolist(),
        strict=True,
    ):
        row = EntityRow(
            start=max(-_FAR, min(start, _FAR)),
            end=max(-_FAR, min(end, _FAR)),
            label=label,
            probability=probability,
            cumulative=cumulative,
            class_rank=float(class_rank) or unknown,
            rank=float(rank) or unknown,
        )
        key = (row.start, row.end, row.label)
        if span is None or key not in kept:
            kept[key] = row
    return list(kept.values())
