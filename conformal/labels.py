"""IOB2 label spaces: labels, legal moves, spans, repair, folding, and other tagging schemes.

Token spans are half open: `Span(start, end, label)` covers tokens `start .. end - 1`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from conformal.errors import InvalidLabels

OUTSIDE = "O"

Ids = npt.NDArray[np.int16]
Groups = tuple[tuple[int, ...], ...]


class Span(NamedTuple):
    """An entity: tokens `start .. end - 1`, of class `label`."""

    start: int
    end: int
    label: str


class Scheme(Enum):
    """How a tag sequence spells its entities; BILOU is BIOES with L for E and U for S."""

    IOB2 = "IOB2"
    IOB1 = "IOB1"
    IO = "IO"
    BIOES = "BIOES"


@dataclass(frozen=True)
class LabelSpace:
    """The IOB2 labels over `classes`, in the fixed order O, B-first, I-first, B-second, ... (METHODS 1).

    >>> space = LabelSpace(["PER", "LOC"])
    >>> space.labels
    ('O', 'B-PER', 'I-PER', 'B-LOC', 'I-LOC')
    >>> space.spans(space.encode(["B-PER", "I-PER", "O", "B-LOC"]))
    [Span(start=0, end=2, label='PER'), Span(start=3, end=4, label='LOC')]
    """

    classes: tuple[str, ...]

    def __init__(self, classes: Iterable[str]) -> None:
        names = (classes,) if isinstance(classes, str) else tuple(classes)
        if not names:
            raise InvalidLabels("expected at least one class, got none")
        for name in names:
            if not isinstance(name, str) or not name.strip() or name == OUTSIDE:
                raise InvalidLabels(f"expected class names that are non-blank text other than 'O', got {name!r}")
        if len(set(names)) != len(names):
            raise InvalidLabels(f"expected distinct class names, got {names}")
        object.__setattr__(self, "classes", names)

    def __len__(self) -> int:
        return 1 + 2 * len(self.classes)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """All labels; a label's position is its id."""
        return (OUTSIDE, *(f"{prefix}-{name}" for name in self.classes for prefix in "BI"))

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {label: i for i, label in enumerate(self.labels)}

    @cached_property
    def _class_ids(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.classes)}

    def begin(self, name: str) -> int:
        """Return the id of `B-name`; `I-name` is the next one."""
        try:
            return 1 + 2 * self._class_ids[name]
        except KeyError:
            raise InvalidLabels(f"expected one of the classes {self.classes}, got {name!r}") from None

    def index(self, label: str) -> int:
        """Return the id of a label such as `B-PER`."""
        try:
            return self._ids[label]
        except KeyError:
            raise InvalidLabels(f"expected one of the labels {self.labels}, got {label!r}") from None

    def encode(self, labels: Sequence[str]) -> Ids:
        """Label strings to ids; the sequence need not be legal."""
        return np.array([self.index(label) for label in labels], dtype=np.int16)

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Ids to label strings."""
        return [self.labels[i] for i in self._checked(ids)]

    @cached_property
    def allowed(self) -> npt.NDArray[np.bool_]:
        """`allowed[x, y]`: may label y follow label x? (L, L)."""
        L = len(self)
        moves = np.ones((L, L), dtype=np.bool_)
        for inside in range(2, L, 2):
            moves[:, inside] = False
            moves[inside - 1 : inside + 1, inside] = True
        moves.setflags(write=False)
        return moves

    @cached_property
    def allowed_start(self) -> npt.NDArray[np.bool_]:
        """`allowed_start[y]`: may a text begin with label y? (L,)."""
        first = np.ones(len(self), dtype=np.bool_)
        first[2::2] = False
        first.setflags(write=False)
        return first

    def is_legal(self, ids: Iterable[int]) -> bool:
        """Whether no `I-x` stands anywhere but after `B-x` or `I-x`."""
        previous = 0
        for i in self._checked(ids):
            if i and i % 2 == 0 and previous not in (i - 1, i):
                return False
            previous = i
        return True

    def spans(self, ids: Iterable[int]) -> list[Span]:
        """Return the entities of a legal label sequence, in order."""
        entities: list[Span] = []
        open_at = -1
        previous = 0
        position = 0
        for position, i in enumerate(self._checked(ids)):
            if not i and not previous:  # most tokens: nothing ends here and nothing begins
                continue
            inside = i > 0 and i % 2 == 0
            if inside and previous not in (i - 1, i):
                raise InvalidLabels(
                    f"expected a legal IOB2 sequence, got {self.labels[i]} after "
                    f"{self.labels[previous] if position else 'the start'} at token {position}; repair() first"
                )
            if not inside:
                if previous:
                    entities.append(Span(open_at, position, self.classes[(previous - 1) // 2]))
                open_at = position
            previous = i
        if previous:
            entities.append(Span(open_at, position + 1, self.classes[(previous - 1) // 2]))
        return entities

    def ids(self, spans: Iterable[Span], length: int) -> Ids:
        """Entities to the label sequence of a text of `length` tokens; the inverse of `spans`."""
        sequence = np.zeros(length, dtype=np.int16)
        for start, end, name in spans:
            begin = self.begin(name)
            if not 0 <= start < end <= length:
                raise InvalidLabels(f"expected a span inside 0..{length}, got {start}..{end} ({name})")
            if sequence[start:end].any():
                raise InvalidLabels(f"expected spans that do not overlap, got a second one at {start}..{end} ({name})")
            sequence[start] = begin
            sequence[start + 1 : end] = begin + 1
        return sequence

    def repair(self, ids: Iterable[int]) -> tuple[Ids, int]:
        """Let a stray `I-x` open an entity; return the legal sequence and how many labels changed.

        >>> space = LabelSpace(["PER"])
        >>> ids, changed = space.repair(space.encode(["O", "I-PER", "I-PER"]))
        >>> space.decode(ids), changed
        (['O', 'B-PER', 'I-PER'], 1)
        """
        sequence = np.array(self._checked(ids), dtype=np.int16)
        changed = 0
        previous = 0
        for position, i in enumerate(sequence.tolist()):
            current = i
            if i and i % 2 == 0 and previous not in (i - 1, i):
                current = i - 1
                sequence[position] = current
                changed += 1
            previous = current
        return sequence, changed

    def collapse(self, name: str = "ENTITY") -> tuple[LabelSpace, Ids]:
        """Merge all classes into one (CoNLL-reduced): the new space and the new id of every old id."""
        target = LabelSpace([name])
        mapping = np.array([0, *(1 + (i - 1) % 2 for i in range(1, len(self)))], dtype=np.int16)
        return target, mapping

    def fold(self, keep: Sequence[str]) -> tuple[LabelSpace, Groups]:
        """Send every class outside `keep` to O: the new space and, per new label, the old ids that become it.

        The groups go to `Potentials.fold`, which adds the folded labels' probabilities to O's (METHODS 1).
        """
        target = LabelSpace(keep)
        groups: list[tuple[int, ...]] = []
        for name in target.classes:
            begin = self.begin(name)
            groups += [(begin,), (begin + 1,)]
        kept = {i for group in groups for i in group}
        outside = tuple(i for i in range(len(self)) if i not in kept)
        return target, (outside, *groups)

    def fold_ids(self, ids: Iterable[int], keep: Sequence[str]) -> Ids:
        """Apply `fold` to a label sequence: its labels in the smaller space."""
        _, groups = self.fold(keep)
        mapping = {old: new for new, group in enumerate(groups) for old in group}
        return np.array([mapping[i] for i in self._checked(ids)], dtype=np.int16)

    def _checked(self, ids: Iterable[int]) -> list[int]:
        checked = ids.tolist() if isinstance(ids, np.ndarray) else [int(i) for i in ids]
        if checked and not 0 <= min(checked) <= max(checked) < len(self):
            i = next(i for i in checked if not 0 <= i < len(self))
            raise InvalidLabels(f"expected label ids in 0..{len(self) - 1}, got {i}")
        return checked


@dataclass(frozen=True)
class LabelMap:
    """How a model's own label columns become IOB2 columns of `space`.

    `groups[y]` lists the model's columns whose probabilities add up to label y, and `allowed[x, y]` the moves
    that keep the correspondence one to one. IO spells no boundary between neighbouring tokens of one class, so
    those are one entity: B-x may not follow B-x or I-x. BIOES and IOB1 columns are merged (B with S, I with E;
    for IOB1 an entity may begin with I), which keeps each token's probabilities and drops the scheme's own
    end markers.
    """

    space: LabelSpace
    scheme: Scheme
    groups: Groups
    allowed: npt.NDArray[np.bool_]


def split_tag(tag: str) -> tuple[str, str]:
    """Split a tag into prefix and class at the first dash: `B-event-sports` is B of `event-sports`.

    A tag without a one-letter prefix is a class by itself (IO scheme), with prefix "".
    """
    if tag == OUTSIDE:
        return OUTSIDE, ""
    prefix, dash, name = tag.partition("-")
    if dash and name and prefix in {"B", "I", "E", "S", "L", "U"}:
        return prefix, name
    return "", tag


def detect_scheme(tags: Iterable[str]) -> Scheme:
    """Name the scheme from the tags in use. IOB1 cannot be told from IOB2 this way and must be named."""
    prefixes = {split_tag(tag)[0] for tag in tags} - {OUTSIDE}
    if prefixes in (set(), {""}, {"I"}):
        return Scheme.IO
    if "" in prefixes:
        raise InvalidLabels(f"expected all tags or none with a prefix such as B-, got a mixture: {sorted(set(tags))}")
    return Scheme.BIOES if prefixes & {"E", "S", "L", "U"} else Scheme.IOB2


def to_iob2(tags: Sequence[str], scheme: Scheme) -> tuple[list[str], int]:
    """Rewrite a tag sequence as legal IOB2; also how many tags were illegal in their own scheme.

    >>> to_iob2(["S-LOC", "O", "B-PER", "E-PER"], Scheme.BIOES)
    (['B-LOC', 'O', 'B-PER', 'I-PER'], 0)
    >>> to_iob2(["PER", "PER", "LOC"], Scheme.IO)
    (['B-PER', 'I-PER', 'B-LOC'], 0)
    """
    result: list[str] = []
    illegal = 0
    open_class = ""  # class of the entity the previous token belongs to
    closed = True  # whether that entity has ended (BIOES end markers)
    for tag in tags:
        prefix, name = split_tag(tag)
        if prefix == OUTSIDE:
            illegal += scheme is Scheme.BIOES and not closed
            result.append(OUTSIDE)
            open_class, closed = "", True
            continue
        continues = name == open_class and _continues(prefix, scheme, closed)
        illegal += _is_illegal(prefix, scheme, same_class=name == open_class, closed=closed)
        result.append(f"{'I' if continues else 'B'}-{name}")
        open_class = name
        closed = scheme is Scheme.BIOES and prefix in {"E", "L", "S", "U"}
    if scheme is Scheme.BIOES and not closed and open_class:
        illegal += 1
    return result, illegal


def _continues(prefix: str, scheme: Scheme, closed: bool) -> bool:
    if scheme is Scheme.IO:
        return True
    if scheme is Scheme.BIOES:
        return prefix in {"I", "E", "L"} and not closed
    return prefix == "I"


def _is_illegal(prefix: str, scheme: Scheme, *, same_class: bool, closed: bool) -> bool:
    if scheme is Scheme.IO:
        return prefix not in {"", "I"}
    if scheme is Scheme.IOB1:
        return prefix not in {"B", "I"} or (prefix == "B" and not same_class)
    if scheme is Scheme.IOB2:
        return prefix not in {"B", "I"} or (prefix == "I" and not same_class)
    if prefix in {"I", "E", "L"}:
        return not same_class or closed
    return prefix not in {"B", "S", "U"} or not closed


def map_model_labels(labels: Sequence[str], *, scheme: Scheme | None = None) -> LabelMap:
    """Build the `LabelMap` of a model whose column j means `labels[j]`.

    >>> mapping = map_model_labels(["I-PER", "O", "B-PER"])
    >>> mapping.space.labels, mapping.groups
    (('O', 'B-PER', 'I-PER'), ((1,), (2,), (0,)))
    """
    if len(set(labels)) != len(labels):
        raise InvalidLabels(f"expected distinct model labels, got {list(labels)}")
    if OUTSIDE not in labels:
        raise InvalidLabels(f"expected the label 'O' among the model's labels, got {list(labels)}")
    spelling = detect_scheme(labels) if scheme is None else scheme
    columns: dict[tuple[str, str], int] = {split_tag(label): j for j, label in enumerate(labels)}
    space = LabelSpace(dict.fromkeys(name for prefix, name in columns if prefix != OUTSIDE))
    begins, insides = {
        Scheme.IO: (("", "I"), ("", "I")),
        Scheme.IOB2: (("B",), ("I",)),
        Scheme.IOB1: (("B", "I"), ("I",)),
        Scheme.BIOES: (("B", "S", "U"), ("I", "E", "L")),
    }[spelling]
    groups: list[tuple[int, ...]] = [(columns[OUTSIDE, ""],)]
    for name in space.classes:
        groups.extend(
            tuple(columns[prefix, name] for prefix in prefixes if (prefix, name) in columns)
            for prefixes in (begins, insides)
        )
    allowed = space.allowed.copy()
    if spelling is Scheme.IO:
        for begin in range(1, len(space), 2):
            allowed[begin : begin + 2, begin] = False
    allowed.setflags(write=False)
    return LabelMap(space, spelling, tuple(groups), allowed)
