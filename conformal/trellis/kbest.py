"""The k best labelings and every labeling above a probability, exactly and in order (METHODS 2.1, 2.2)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt

from conformal.errors import InvalidArgument, NoLegalLabeling
from conformal.labels import LabelSpace
from conformal.trellis import batches
from conformal.trellis.forward import LabelIds, check_pairs, no_legal_labeling, path_score, run_forward
from conformal.trellis.kernels.batch import decode_many, extract_spans
from conformal.trellis.marginals import check_space
from conformal.trellis.potentials import Chain, Floats, Potentials

# How many labelings tied with the k-th are looked at before the lexicographically first are taken.
TIE_LIMIT = 1024


@dataclass(eq=False, slots=True)
class SpanTable:
    """Entities of several labelings in one table: rows `offsets[r]:offsets[r + 1]` belong to labeling r."""

    offsets: npt.NDArray[np.int64]  # (K + 1,)
    starts: npt.NDArray[np.int32]  # (entities,) first token
    ends: npt.NDArray[np.int32]  # (entities,) token after the last
    classes: npt.NDArray[np.int32]  # (entities,) position in LabelSpace.classes


@dataclass(eq=False, slots=True)
class KBest:
    """The best labelings of a text: higher score first, equal scores in lexicographic order of label ids."""

    labels: npt.NDArray[np.int16]  # (count, N)
    scores: Floats  # (count,) chain scores s(y)
    log_probabilities: Floats  # (count,) s(y) - Z
    log_partition: float  # Z
    exhausted: bool  # True: no other labeling exists (or none at or above `above`)
    spans: SpanTable | None  # entities of each labeling, if a label space was given

    @property
    def count(self) -> int:
        """How many labelings there are: k, or fewer if no more are legal or above the limit."""
        return int(self.labels.shape[0])


@overload
def kbest(
    potentials: Potentials,
    k: int,
    *,
    space: LabelSpace | None = None,
    above: float | None = None,
    threads: int | None = None,
) -> KBest: ...
@overload
def kbest(
    potentials: Sequence[Potentials],
    k: int,
    *,
    space: LabelSpace | None = None,
    above: float | None = None,
    threads: int | None = None,
) -> list[KBest]: ...
def kbest(
    potentials: Potentials | Sequence[Potentials],
    k: int,
    *,
    space: LabelSpace | None = None,
    above: float | None = None,
    threads: int | None = None,
) -> KBest | list[KBest]:
    """Return the exact k best labelings, or all of them if fewer are legal.

    `above` is a log-probability: labelings below it are left out, so that `k` becomes an upper limit. With a
    label space the entities of each labeling come along. A list of texts is decoded in `threads` threads
    (default: one per core).

    Raises `InvalidArgument` for k < 1, `NoLegalLabeling` if everything is forbidden.

    >>> p = Potentials(emissions=[[0.0, 1.0], [2.0, 0.0]], transitions=[[0, 0], [0, 0]], start=[0, 0], end=[0, 0])
    >>> kbest(p, 3).labels.tolist()
    [[1, 0], [0, 0], [1, 1]]
    """
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
        raise InvalidArgument(f"expected a whole number k >= 1, got {k!r}")
    if above is not None and math.isnan(above):
        raise InvalidArgument("expected a log-probability for above, got NaN")
    limit = -math.inf if above is None else float(above)
    if isinstance(potentials, Potentials):
        return _kbest([potentials], int(k), space, limit)[0]
    batch = batches.check_batch(potentials)
    return batches.run_pieces(lambda piece: _kbest(piece, int(k), space, limit), batch, threads)


def _kbest(texts: Sequence[Potentials], k: int, space: LabelSpace | None, above: float) -> list[KBest]:
    """Decode texts one after the other, those of one chain in one call."""
    chains = {id(p.chain): p.chain for p in texts}
    if len(chains) == 1:
        return _decode(texts[0].chain, texts, k, space, above)
    results: list[KBest | None] = [None] * len(texts)
    for key, chain in chains.items():
        own = [i for i, p in enumerate(texts) if id(p.chain) == key]
        for i, result in zip(own, _decode(chain, [texts[i] for i in own], k, space, above), strict=True):
            results[i] = result
    return results  # type: ignore[return-value]


def _decode(chain: Chain, texts: Sequence[Potentials], k: int, space: LabelSpace | None, above: float) -> list[KBest]:
    if space is not None:
        check_space(texts[0], space)
    if len(texts) == 1:
        emissions, kinds = texts[0].emissions, texts[0].kinds
    else:
        emissions = np.concatenate([p.emissions for p in texts])
        kinds = np.concatenate([p.kinds for p in texts])
        # Read-only like those of a single text: numba compiles again for arrays that may be written.
        emissions.setflags(write=False)
        kinds.setflags(write=False)
    tokens = np.zeros(len(texts) + 1, dtype=np.int64)
    np.cumsum([p.emissions.shape[0] for p in texts], out=tokens[1:])
    labels, cells, scores, log_probabilities, rows, log_z, exhausted = decode_many(
        emissions,
        kinds,
        tokens,
        chain.moves,
        chain.moves_from,
        chain.scaled_moves,
        chain.move_shift,
        chain.start,
        chain.end,
        chain.fits_scaled_range,
        k,
        above,
        TIE_LIMIT,
    )
    spans = None if space is None else extract_spans(labels, tokens, rows)
    results = []
    cell_at, row_at = cells.tolist(), rows.tolist()
    for b, (p, z, done) in enumerate(zip(texts, log_z.tolist(), exhausted.tolist(), strict=True)):
        if z == -math.inf:
            raise NoLegalLabeling(no_legal_labeling(p))
        first, last = row_at[b], row_at[b + 1]
        table = None
        if spans is not None:
            offsets, starts, ends, classes = spans
            low, high = offsets[first], offsets[last]
            table = SpanTable(offsets[first : last + 1] - low, starts[low:high], ends[low:high], classes[low:high])
        own = labels[cell_at[b] : cell_at[b + 1]].reshape(last - first, p.emissions.shape[0])
        results.append(KBest(own, scores[first:last], log_probabilities[first:last], z, done, table))
    return results


Labeling = tuple[npt.NDArray[np.int16], float]


@overload
def enumerate_above(
    potentials: Potentials,
    probability: float | None = None,
    *,
    log_probability: float | None = None,
    threads: int | None = None,
) -> Iterator[Labeling]: ...
@overload
def enumerate_above(
    potentials: Sequence[Potentials],
    probability: float | None = None,
    *,
    log_probability: float | None = None,
    threads: int | None = None,
) -> list[Iterator[Labeling]]: ...
def enumerate_above(
    potentials: Potentials | Sequence[Potentials],
    probability: float | None = None,
    *,
    log_probability: float | None = None,
    threads: int | None = None,
) -> Iterator[Labeling] | list[Iterator[Labeling]]:
    """Yield every labeling with `P >= probability` as (labels, log-probability), lazily and in order.

    There are at most `1 / probability` of them. `log_probability` may be given instead, for limits that a float
    probability cannot hold. Of a batch, the first part of every text is decoded in threads, the rest on demand.

    >>> p = Potentials(emissions=[[0.0, 1.0]], transitions=[[0, 0], [0, 0]], start=[0, 0], end=[0, 0])
    >>> [labels.tolist() for labels, _ in enumerate_above(p, 0.5)]
    [[1]]
    """
    if (probability is None) == (log_probability is None):
        raise InvalidArgument("expected either probability or log_probability, got both or neither")
    if probability is not None:
        if not 0.0 < probability <= 1.0:
            raise InvalidArgument(f"expected a probability in (0, 1], got {probability!r}")
        limit = math.log(probability)
    else:
        limit = float(log_probability)  # type: ignore[arg-type]
        if not -math.inf < limit <= 0.0:
            raise InvalidArgument(f"expected a finite log-probability <= 0, got {limit!r}")
    level = max(limit, -_LEVEL)
    first = batches.run(lambda p: _kbest([p], _NO_LIMIT, None, level)[0], potentials, threads)
    if isinstance(first, KBest):
        return _continue_above(potentials, first, level, limit)  # type: ignore[arg-type]
    return [_continue_above(p, part, level, limit) for p, part in zip(potentials, first, strict=True)]  # type: ignore[arg-type]


# Each part goes this much further down (a factor of 16), so that decoding again from the top costs little.
_LEVEL = math.log(16.0)
_NO_LIMIT = 2**40


def _continue_above(potentials: Potentials, part: KBest, level: float, limit: float) -> Iterator[Labeling]:
    seen = 0
    while True:
        yield from zip(part.labels[seen:], part.log_probabilities[seen:].tolist(), strict=True)
        if level <= limit:
            return
        # Parts are cut by probability, not by number, so what was seen is exactly the head of the next part.
        seen = part.count
        level = max(limit, level - _LEVEL)
        part = _kbest([potentials], _NO_LIMIT, None, level)[0]


@overload
def rank_of(potentials: Potentials, labels: LabelIds, limit: int, *, threads: int | None = None) -> int | None: ...
@overload
def rank_of(
    potentials: Sequence[Potentials], labels: Sequence[LabelIds], limit: int, *, threads: int | None = None
) -> list[int | None]: ...
def rank_of(
    potentials: Potentials | Sequence[Potentials],
    labels: LabelIds | Sequence[LabelIds],
    limit: int,
    *,
    threads: int | None = None,
) -> int | list[int | None] | None:
    """Return the rank r of a labeling y(r), 1 for the best; None if it is forbidden or ranks beyond `limit`.

    >>> p = Potentials(emissions=[[0.0, 1.0], [2.0, 0.0]], transitions=[[0, 0], [0, 0]], start=[0, 0], end=[0, 0])
    >>> rank_of(p, [1, 1], 10), rank_of(p, [1, 1], 2)
    (3, None)
    """
    if isinstance(limit, bool) or not isinstance(limit, (int, np.integer)) or limit < 1:
        raise InvalidArgument(f"expected a whole number limit >= 1, got {limit!r}")
    if isinstance(potentials, Potentials):
        return _rank_of(potentials, labels, int(limit))  # type: ignore[arg-type]
    batch, each = check_pairs(potentials, labels)  # type: ignore[arg-type]
    return batches.run_many(lambda i: _rank_of(batch[i], each[i], int(limit)), len(batch), threads)


def _rank_of(potentials: Potentials, labels: LabelIds, limit: int) -> int | None:
    score = path_score(potentials, labels)
    if score == -np.inf:
        return None
    log_z = run_forward(potentials).log_partition if potentials.length else 0.0
    better = _kbest([potentials], limit, None, score - log_z)[0]
    same = np.flatnonzero((better.labels == np.asarray(labels)).all(axis=1))
    return int(same[0]) + 1 if same.size else None
