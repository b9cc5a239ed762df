"""How wrong a labeling is beside a person's label: 0 or 1 for a text of one unit, a share for a document."""

from __future__ import annotations

from collections.abc import Iterable

from backend.domain.records import TextSpan


def loss_of(best: Iterable[TextSpan], truth: Iterable[TextSpan], *, text: str | None, units: int) -> float:
    """Return the loss of accepting `best` where `truth` is right (METHODS 12.2).

    1 where they differ in a text of one unit. Of several units the share that is wrong in the final labels: errors over
    true spans and false ones (METHODS 11.1). White space at the edges of a span does not matter.

    >>> per, loc = TextSpan(0, 3, "PER"), TextSpan(4, 7, "LOC")
    >>> loss_of([per], [per], text=None, units=1), loss_of([per], [per, loc], text=None, units=1)
    (0.0, 1.0)
    >>> loss_of([per], [per, loc], text=None, units=2), loss_of([TextSpan(0, 4, "PER")], [per], text="Ann x", units=1)
    (0.5, 0.0)
    """
    said, right = ({trimmed(span, text) for span in spans} for spans in (best, truth))
    missing, false = len(right - said), len(said - right)
    if units <= 1:
        return float(missing + false > 0)
    return (missing + false) / max(1, len(right) + false)


def trimmed(span: TextSpan, text: str | None) -> TextSpan:
    """Return a span without the white space at its edges; as it is where it holds nothing else, or without a text."""
    if text is None:
        return span
    inside = text[span.start : span.end]
    start = span.start + len(inside) - len(inside.lstrip())
    return TextSpan(start, start + len(inside.strip()), span.label) if inside.strip() else span
