"""The ranked lists of a text's units, packed: enough to cut sets at another threshold without a forward pass.

Labelings of one unit share most of their spans, so each distinct span is written once and a labeling is a list of
numbers. Probabilities keep all 64 bits, because a set is decided by comparing them with a threshold.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from backend.domain.ranked import Candidate, RankedList, RankedText, RankedUnit, one_unit
from backend.domain.records import TextSpan
from backend.errors import StoreConflict

_ONE = 1  # one list, as earlier releases wrote it
_UNITS = 2  # the lists of several units, each with its bounds and stratum; also of an earlier release
_FLOOR = 3  # lists of units that say down to where their candidates go

_HEAD = struct.Struct("<BBIIIII")
_UNITS_HEAD = struct.Struct("<BII")
_FLOOR_HEAD = struct.Struct("<BIId")


def pack_ranked(text: RankedText) -> bytes:
    """Return the lists of a text as bytes.

    >>> span = TextSpan(0, 3, "PER")
    >>> text = one_unit(RankedList(("PER",), (-0.1, -2.4), ((span,), ()), exhausted=True))
    >>> unpack_ranked(pack_ranked(text)) == text
    True
    """
    strata = sorted({unit.stratum for unit in text.units})
    names = json.dumps(strata).encode()
    bounds = [(unit.start, unit.end, strata.index(unit.stratum)) for unit in text.units]
    lists = [part for unit in text.units for part in _packed(unit.ranked)]
    body = b"".join((names, _ints(bounds, 3), *lists))
    return _FLOOR_HEAD.pack(_FLOOR, len(names), len(text.units), text.floor) + zlib.compress(body, 6)


def unpack_ranked(packed: bytes) -> RankedText:
    """Return the lists that `pack_ranked` packed.

    Raises:
        StoreConflict: when the bytes are of another format or damaged.
    """
    form = packed[0] if packed else -1
    try:
        if form == _ONE:
            return one_unit(_unpacked(packed[: _HEAD.size], _Reader(zlib.decompress(packed[_HEAD.size :]))))
        if form in (_UNITS, _FLOOR):
            head = _UNITS_HEAD if form == _UNITS else _FLOOR_HEAD
            _, names, count, *floor = head.unpack_from(packed)
            reader = _Reader(zlib.decompress(packed[head.size :]))
            strata = json.loads(reader.take(names))
            bounds = reader.ints(count * 3).reshape(-1, 3).tolist()
            return RankedText(
                tuple(
                    RankedUnit(start, end, strata[at], _unpacked(reader.take(_HEAD.size), reader))
                    for start, end, at in bounds
                ),
                *floor,
            )
    except (struct.error, zlib.error, ValueError, IndexError) as error:
        raise StoreConflict(f"expected a ranked list of format {form}, got a damaged one: {error}") from None
    raise StoreConflict(f"expected a ranked list of format {_ONE} to {_FLOOR}, got format {form}: it cannot be read")


def _packed(ranked: RankedList) -> tuple[bytes, bytes]:
    if len(ranked.labelings) != len(ranked.log_probabilities):
        raise ValueError(
            f"expected one probability per labeling, got {len(ranked.log_probabilities)} for {len(ranked.labelings)}"
        )
    codes = {name: code for code, name in enumerate(ranked.classes)}
    numbers: dict[TextSpan, int] = {}
    for labeling in ranked.labelings:
        for span in labeling:
            numbers.setdefault(span, len(numbers))
    spans = [(span.start, span.end, codes[span.label]) for span in numbers]
    members = [numbers[span] for labeling in ranked.labelings for span in labeling]
    sizes = [len(labeling) for labeling in ranked.labelings]
    names = json.dumps(ranked.classes).encode()
    head = _HEAD.pack(_ONE, ranked.exhausted, len(names), len(sizes), len(spans), len(members), len(ranked.candidates))
    body = b"".join(
        (
            names,
            np.array(ranked.log_probabilities, "<f8").tobytes(),
            np.array(sizes, "<u4").tobytes(),
            _ints(spans, 3),
            np.array(members, "<u4").tobytes(),
            _ints([(each.start, each.end) for each in ranked.candidates], 2),
            np.array([each.probabilities for each in ranked.candidates], "<f8").tobytes(),
        )
    )
    return head, body


def _unpacked(head: bytes, reader: _Reader) -> RankedList:
    _, exhausted, names, count, spans, members, candidates = _HEAD.unpack(head)
    classes = tuple(json.loads(reader.take(names)))
    log_probabilities = reader.floats(count)
    sizes = reader.ints(count)
    table = reader.ints(spans * 3).reshape(-1, 3)
    distinct = [TextSpan(int(start), int(end), classes[code]) for start, end, code in table]
    numbers = reader.ints(members)
    ends = np.cumsum(sizes)
    labelings = tuple(
        tuple(distinct[number] for number in numbers[end - size : end]) for size, end in zip(sizes, ends, strict=True)
    )
    bounds = reader.ints(candidates * 2).reshape(-1, 2)
    probabilities = reader.floats(candidates * len(classes)).reshape(-1, max(1, len(classes)))
    spans = tuple(
        Candidate(int(start), int(end), tuple(row.tolist()))
        for (start, end), row in zip(bounds, probabilities, strict=True)
    )
    return RankedList(classes, tuple(log_probabilities.tolist()), labelings, bool(exhausted), spans)


def _ints(rows: Sequence[tuple[int, ...]], width: int) -> bytes:
    return np.array(rows, "<u4").reshape(-1, width).tobytes()


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        self.at += size
        return self.data[self.at - size : self.at]

    def ints(self, count: int) -> npt.NDArray[np.int64]:
        return np.frombuffer(self.take(4 * count), "<u4").astype(np.int64)

    def floats(self, count: int) -> npt.NDArray[np.float64]:
        return np.frombuffer(self.take(8 * count), "<f8").astype(np.float64)
