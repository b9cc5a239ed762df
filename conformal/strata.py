"""Strata, and the pooled partition that small strata fall back to (METHODS 5).

A stratum (here: cell) is a function of the input alone. Which cells are pooled depends on counts only, with
the test task counted once more in every cell it touches, so that calibration tasks and test task enter symmetrically:
coverage is exact per pool. Falling back to a whole parent is not (METHODS 5.2). Counts are of tasks: one with units in
several cells counts once in each of them, and once in their pool (METHODS 10.2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from conformal.errors import InvalidArgument, UnknownStratum

EMPTY = "empty"
SEEN = "seen"
WHOLE = "all"
_ANY = "*"


@dataclass(frozen=True)
class Pool:
    """The cells whose calibration rows answer for a test task, `count` tasks with that one included."""

    name: str
    cells: tuple[str, ...]
    count: int
    calibrated: bool

    @property
    def n(self) -> int:
        """Return the number of calibration tasks in the pool."""
        return self.count - 1


@dataclass(frozen=True)
class Strata:
    """Which cells there are: identified language x length bin, optionally x number of entities in y(1).

    `lengths` are the upper ends of the length bins (the last bin is open); `entities` likewise for the
    number of predicted entities, None leaves it out. Texts without tokens are the cell `empty`, training
    texts `seen`.

    >>> strata = Strata()
    >>> strata.cell(language="en", length=12), strata.cell(language="de", length=41), strata.cell(length=0)
    ('en/11-20', 'de/41+', 'empty')
    """

    by_language: bool = True
    lengths: tuple[int, ...] = (10, 20, 30, 40)
    entities: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for ends, least in ((self.lengths, 1), (self.entities or (), 0)):
            if any(end < least for end in ends) or list(ends) != sorted(set(ends)):
                raise InvalidArgument(f"expected rising bin ends of at least {least}, got {ends}")

    @cached_property
    def length_bins(self) -> tuple[str, ...]:
        """Names of the length bins, shortest first."""
        return _bin_names(self.lengths, 1)

    @cached_property
    def entity_bins(self) -> tuple[str, ...]:
        """Names of the entity-count bins."""
        return tuple(f"e{name}" for name in _bin_names(self.entities, 0)) if self.entities else ()

    def cell(self, *, length: int, language: str | None = None, entities: int | None = None, seen: bool = False) -> str:
        """Return the cell of a text of `length` tokens."""
        if length < 0:
            raise InvalidArgument(f"expected a length of at least 0, got {length}")
        if length == 0:
            return EMPTY
        if seen:
            return SEEN
        parts: list[str] = []
        if self.by_language:
            if not language or "/" in language or language == _ANY:
                raise InvalidArgument(f"expected a language code without '/', got {language!r}")
            parts.append(language)
        if self.lengths:
            parts.append(self.length_bins[sum(length > end for end in self.lengths)])
        if self.entities:
            if entities is None or entities < 0:
                raise InvalidArgument(f"expected the number of entities in the best labeling, got {entities}")
            parts.append(self.entity_bins[sum(entities > end for end in self.entities)])
        return "/".join(parts) or WHOLE

    def check(self, cell: str) -> str:
        """Return the cell if these strata can produce it; raises `UnknownStratum`."""
        if cell in (EMPTY, SEEN):
            return cell
        parts = cell.split("/")
        bins = (
            [None] * self.by_language
            + [self.length_bins] * bool(self.lengths)
            + [self.entity_bins] * bool(self.entities)
        )
        fits = len(parts) == len(bins) and all(
            part and part != _ANY if known is None else part in known for part, known in zip(parts, bins, strict=True)
        )
        if not fits and not (not bins and cell == WHOLE):
            raise UnknownStratum(
                f"expected a stratum such as {self._example()!r}, got {cell!r}; build it with Strata.cell"
            )
        return cell

    def _example(self) -> str:
        return self.cell(length=15, language="en", entities=1)

    @cached_property
    def _levels(self) -> tuple[tuple[bool, ...], ...]:
        """Which axes each level of pooling keeps, finest first."""
        axes = [name for name, used in self._axes if used]
        wanted = [set(axes), set(axes) - {"entities"}, {"language"}, {"length"}, set()]
        levels = [tuple(axis in keep for axis in axes) for keep in wanted if keep <= set(axes)]
        return tuple(dict.fromkeys(levels))

    @property
    def _axes(self) -> tuple[tuple[str, bool], ...]:
        return (
            ("language", self.by_language),
            ("length", bool(self.lengths)),
            ("entities", bool(self.entities)),
        )

    def _group(self, cell: str, level: tuple[bool, ...]) -> str:
        if not level or all(level):
            return cell
        return "/".join(part if kept else _ANY for part, kept in zip(cell.split("/"), level, strict=True))

    def partition(
        self, counts: Mapping[str, int], *, n_min: int, together: Callable[[Sequence[str]], int] | None = None
    ) -> list[Pool]:
        """Split all cells with a positive count into pools, by counts alone (METHODS 5.2).

        A cell of at least `n_min` stands alone; what is left is pooled per language, then per length, then
        all together; each of these stands if it reaches `n_min`, and the last is uncalibrated otherwise.
        `empty` and `seen` never mix with others. Counts include the test task. `together` says how many tasks several
        cells have; None: the sum, where no task has units in two of them.
        """
        if n_min < 1:
            raise InvalidArgument(f"expected n_min of at least 1, got {n_min}")
        left = {self.check(cell): count for cell, count in sorted(counts.items()) if count > 0}
        pools = [Pool(cell, (cell,), left[cell], left.pop(cell) >= n_min) for cell in (EMPTY, SEEN) if cell in left]
        for level in self._levels:
            groups: dict[str, list[str]] = {}
            for cell in left:
                groups.setdefault(self._group(cell, level), []).append(cell)
            last = level == self._levels[-1]
            for name, cells in groups.items():
                several = together if len(cells) > 1 else None
                count = sum(left[cell] for cell in cells) if several is None else several(cells)
                if count >= n_min or last:
                    pools.append(Pool(name, tuple(cells), count, count >= n_min))
            for pool in pools:
                for cell in pool.cells:
                    left.pop(cell, None)
        return pools

    def pool_of(self, cell: str, counts: Mapping[str, int], *, n_min: int) -> Pool:
        """Return the pool that answers for a test task of one unit, in `cell`; counts are of calibration tasks alone.

        >>> Strata().pool_of("en/1-10", {"en/1-10": 40, "en/11-20": 70, "en/21-30": 300}, n_min=100).name
        'en/*'
        """
        wanted = self.check(cell)
        seen = Counter(counts)
        seen[wanted] += 1
        return next(pool for pool in self.partition(seen, n_min=n_min) if wanted in pool.cells)

    def pools(self, counts: Mapping[str, int], *, n_min: int, cells: Iterable[str] = ()) -> dict[str, Pool]:
        """Return the pool of every counted cell (and of `cells`), each as if the test task were in it."""
        return {cell: self.pool_of(cell, counts, n_min=n_min) for cell in sorted({*counts, *cells})}


def _bin_names(ends: tuple[int, ...] | None, first: int) -> tuple[str, ...]:
    names: list[str] = []
    start = first
    for end in ends or ():
        names.append(str(end) if start == end else f"{start}-{end}")
        start = end + 1
    return (*names, f"{start}+")


NO_STRATA = Strata(by_language=False, lengths=())  # one cell for all texts
