"""Ranked lists as releases before flags with a promise wrote them, byte by byte: they are in databases for ever."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import replace

from backend.domain.ranked import RankedList, RankedText
from backend.domain.records import TextSpan

HEAD, UNITS_HEAD = struct.Struct("<BBIIIII"), struct.Struct("<BII")


def _packed_one(listed: RankedList) -> tuple[bytes, bytes]:
    """A list as releases before flags with a promise wrote it."""
    numbers: dict[TextSpan, int] = {}
    for labeling in listed.labelings:
        for span in labeling:
            numbers.setdefault(span, len(numbers))
    members = [numbers[span] for labeling in listed.labelings for span in labeling]
    names = json.dumps(listed.classes).encode()
    sizes = [len(labeling) for labeling in listed.labelings]
    head = HEAD.pack(1, listed.exhausted, len(names), len(sizes), len(numbers), len(members), len(listed.candidates))
    spans = [number for s in numbers for number in (s.start, s.end, listed.classes.index(s.label))]
    bounds = [number for each in listed.candidates for number in (each.start, each.end)]
    shares = [share for each in listed.candidates for share in each.probabilities]
    body = [
        names,
        struct.pack(f"<{len(sizes)}d", *listed.log_probabilities),
        struct.pack(f"<{len(sizes)}I", *sizes),
        struct.pack(f"<{len(spans)}I", *spans),
        struct.pack(f"<{len(members)}I", *members),
        struct.pack(f"<{len(bounds)}I", *bounds),
        struct.pack(f"<{len(shares)}d", *shares),
    ]
    return head, b"".join(body)


def pack_as_earlier(text: RankedText) -> bytes:
    """Form 1 for a text of one unit, form 2 for others; candidates down to 0.01 or of the best labeling alone."""
    lists = [narrow(unit.ranked) for unit in text.units]
    if len(text.units) == 1:
        head, body = _packed_one(lists[0])
        return head + zlib.compress(body, 6)
    strata = sorted({unit.stratum for unit in text.units})
    names = json.dumps(strata).encode()
    places = [n for unit in text.units for n in (unit.start, unit.end, strata.index(unit.stratum))]
    body = names + struct.pack(f"<{len(places)}I", *places) + b"".join(b"".join(_packed_one(each)) for each in lists)
    return UNITS_HEAD.pack(2, len(names), len(text.units)) + zlib.compress(body, 6)


def narrow(listed: RankedList) -> RankedList:
    """Keep the candidates that such a list had."""
    best = {(span.start, span.end) for span in listed.labelings[0]} if listed.labelings else set()
    kept = [c for c in listed.candidates if sum(c.probabilities) >= 0.01 or (c.start, c.end) in best]
    return replace(listed, candidates=tuple(kept))
