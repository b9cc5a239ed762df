"""Decode labelled texts once: the arrays that every method, level and split of an evaluation reads.

One safetensors file per data file, named by what decides its contents: the model, the data, the sample and the sizes.
A run that was interrupted goes on after the last finished file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from backend.evaluation.actions import count_actions
from backend.evaluation.merging import merge_texts
from backend.prediction.scoring import ScoredText, score_labelled
from backend.tagger.errors import InvalidData
from backend.tagger.readers import LabelledText, read_labelled
from backend.tagger.tagger import Tagger
from backend.tagger.whole import WholeTexts
from conformal.labels import LabelSpace, Span
from conformal.subsequence import candidate_spans, list_spans, listing_floor
from conformal.trellis import EntityMarginals, entity_marginals, kbest

FORMAT = "surespan-decoded 2"
LISTED = 1000  # labelings whose probabilities are kept: sizes up to this are exact
DETAILED = 100  # labelings whose entities are kept: the paper's K
SHOWN = 10  # labelings whose distance from the truth is counted
P_MIN = 0.01
_CHUNK = 256

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Decoded:
    """Arrays of T tasks; see `_describe` for what each holds. `languages` and `sources` name the codes."""

    classes: tuple[str, ...]
    languages: tuple[str, ...]
    sources: tuple[str, ...]
    arrays: dict[str, Array]

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    def __len__(self) -> int:
        return int(self.arrays["task.length"].size)


def decode_files(
    tagger: Tagger,
    files: Sequence[Path],
    *,
    cache: Path,
    rows: int | None = None,
    seed: int = 0,
    merge: str | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Decoded:
    """Return the decoded texts of all files, each from the cache where it is there already.

    `rows` takes a random sample of each file, by seed; `merge` is the one class that all of the data's become (see
    `backend.evaluation.merging`). `progress(file name, done, total)` is told how far it is.
    """
    cache.mkdir(parents=True, exist_ok=True)
    parts: list[Decoded] = []
    names = distinct_names(files)
    for path, name in zip(files, names, strict=True):
        key = _key(tagger, path, rows=rows, seed=seed)
        target = cache / f"{path.name.split('.')[0]}-{key[:16]}.safetensors"
        decoded = _load(target)
        if decoded is None:
            texts = read_labelled(path).texts
            if not texts:
                raise InvalidData(
                    f"expected labelled texts in {name}, got none; give a CoNLL file or a Label Studio export with "
                    "at least one"
                )
            if rows is not None:
                chosen = np.sort(np.random.default_rng(seed).permutation(len(texts))[:rows])
                texts = tuple(texts[i] for i in chosen.tolist())
            if merge is not None:
                texts = merge_texts(texts, merge)
            decoded = decode_texts(tagger, texts, source=name, progress=progress)
            _save(decoded, target)
        elif progress is not None:
            progress(name, len(decoded), len(decoded))
        parts.append(decoded)
    return join(parts, sources=names)


def distinct_names(files: Sequence[Path]) -> tuple[str, ...]:
    """Return a short name for each file, no two alike: with as many folders as it takes, then a number.

    >>> distinct_names([Path("a/x.conll"), Path("b/x.conll"), Path("b/y.conll"), Path("b/y.conll")])
    ('a/x.conll', 'b/x.conll', 'y.conll', 'y.conll (2)')
    """
    whole = [path.absolute().parts[1:] for path in files]
    names: list[str] = []
    for parts in whole:
        others = [each for each in whole if each != parts]
        depth = 1
        while depth < len(parts) and any(each[-depth:] == parts[-depth:] for each in others):
            depth += 1
        name = "/".join(parts[-depth:])
        again = sum(each == parts for each in whole[: len(names)])
        names.append(f"{name} ({again + 1})" if again else name)
    return tuple(names)


def decode_texts(
    tagger: Tagger,
    texts: Sequence[LabelledText],
    *,
    source: str = "",
    progress: Callable[[str, int, int], None] | None = None,
) -> Decoded:
    """Tag, decode and score labelled texts, each as one unit: what the paper's methods are about."""
    pieces: list[dict[str, Array]] = []
    names: list[str] = []
    for scored in _chunks(score_labelled(WholeTexts(tagger), texts, p_min=P_MIN)):
        names += [item.language for item in scored]
        pieces.append(_describe_chunk(scored, tagger.space))
        if progress is not None:
            progress(source, len(names), len(texts))
    languages = tuple(sorted(set(names)))
    place = {name: i for i, name in enumerate(languages)}
    joined = _join_arrays(pieces)
    joined["task.language"] = np.array([place[name] for name in names], np.int16)
    joined["task.source"] = np.zeros(len(names), np.int16)
    return Decoded(tagger.space.classes, languages, (source,), joined)


def _chunks(items: Iterable[ScoredText]) -> Iterator[list[ScoredText]]:
    part: list[ScoredText] = []
    for item in items:
        part.append(item)
        if len(part) == _CHUNK:
            yield part
            part = []
    if part:
        yield part


def _describe_chunk(scored: Sequence[ScoredText], space: LabelSpace) -> dict[str, Array]:
    potentials = [item.tagged.potentials for item in scored]
    tops = kbest(potentials, LISTED)
    marginals = entity_marginals(potentials, space, floor=listing_floor(space, P_MIN))
    described: list[dict[str, Array]] = []
    for item, top, entities in zip(scored, tops, marginals, strict=True):
        logs = np.full((1, LISTED), -np.inf, np.float32)
        logs[0, : top.count] = top.log_probabilities
        labels = top.labels[:DETAILED]
        truth = item.alignment.spans
        lost = len(item.alignment.inexpressible)
        best = space.spans(top.labels[0])
        candidates = candidate_spans(entities, space, p_min=P_MIN, extra=[*best, *truth])
        labelings = _labelings(labels, candidates.keys, candidates.probabilities, entities, space)
        (unit,) = item.units
        scores = unit.scores
        rows = scores.entities
        label_of = np.array([(*space.classes, "O").index(name) for name in rows.names], np.int8)
        true_class = {(s.start, s.end): space.classes.index(s.label) for s in truth}
        best_class = {(s.start, s.end): space.classes.index(s.label) for s in best}
        inside = 1.0 - candidates.probabilities[:, -1]
        described.append(
            {
                **labelings,
                "task.length": np.array([item.length], np.int32),
                "task.log_probability": np.array([scores.log_probability]),
                "task.rank": np.array([scores.rank], np.int32),
                "task.cumulative": np.array([scores.cumulative]),
                "task.previous": np.array([scores.previous]),
                "task.entities": np.array([len(truth) + lost], np.int32),
                "task.predicted": np.array([len(best)], np.int32),
                "task.seen": np.array([item.tagged.seen]),
                "task.complete": np.array([top.exhausted]),
                "task.actions": _actions(top.labels[:SHOWN], space, truth, lost)[None, :],
                "list.log_probability": logs,
                "entity.task": np.zeros(len(rows), np.int32),
                "entity.label": label_of[rows.codes] if len(rows) else np.zeros(0, np.int8),
                "entity.probability": rows.scored.probability,
                "entity.cumulative": rows.scored.cumulative,
                "entity.place": rows.scored.class_rank.astype(np.int16),
                "entity.rank": rows.rank.astype(np.int32),
                "span.task": np.zeros(len(inside), np.int32),
                "span.start": candidates.starts.astype(np.int32),
                "span.end": candidates.ends.astype(np.int32),
                "span.probability": candidates.probabilities,
                "span.candidate": inside >= P_MIN,
                "span.true": np.array([true_class.get(key, -1) for key in candidates.keys], np.int8),
                "span.best": np.array([best_class.get(key, -1) for key in candidates.keys], np.int8),
            }
        )
    return _join_arrays(described)


def _labelings(
    labels: npt.NDArray[np.int16],
    keys: Sequence[tuple[int, int]],
    probabilities: Array,
    marginals: EntityMarginals,
    space: LabelSpace,
) -> dict[str, Array]:
    """Describe the best labelings by the distinct entities they hold and the strangest candidate span left out."""
    count = labels.shape[0]
    rows, starts, ends, classes = list_spans(labels)
    distinct, inverse = np.unique(np.column_stack([starts, ends, classes]).reshape(-1, 3), axis=0, return_inverse=True)
    inverse = inverse.ravel()
    first = np.full(len(distinct), DETAILED + 1, np.int32)
    np.minimum.at(first, inverse, rows.astype(np.int32) + 1)
    spans = {key: i for i, key in enumerate(keys)}
    row_of = {key: marginals.of_span(*key) for key in {(a, b) for a, b, _ in distinct.tolist()}}
    p_all = np.array([row_of[a, b] for a, b, _ in distinct.tolist()]).reshape(-1, len(space.classes))
    p_out = np.maximum(0.0, 1.0 - p_all.sum(axis=1, keepdims=True))
    every = np.concatenate([p_all, p_out], axis=1)  # (E, W + 1)
    own = np.take_along_axis(every, distinct[:, 2:3], axis=1)
    at_least = every >= own
    inside = 1.0 - probabilities[:, -1] >= P_MIN
    with np.errstate(divide="ignore"):
        outside = np.where(inside, -np.log(probabilities[:, -1]), 0.0)
    held = np.zeros((count, len(keys)), np.bool_)
    at = np.array([spans.get((a, b), -1) for a, b, _ in distinct.tolist()], np.int64)
    columns = at[inverse]
    held[rows[columns >= 0], columns[columns >= 0]] = True
    left = np.zeros((1, DETAILED), np.float32)
    if keys:
        left[0, :count] = np.where(held, 0.0, outside).max(axis=1)
    counts = np.zeros((1, DETAILED), np.int16)
    counts[0, :count] = np.bincount(rows, minlength=count)
    ranks = np.zeros((len(keys), len(space.classes)), np.int16)
    ranks[at[at >= 0], distinct[at >= 0, 2]] = first[at >= 0]
    return {
        "part.task": np.zeros(len(distinct), np.int32),
        "part.class": distinct[:, 2].astype(np.int8),
        "part.probability": own[:, 0],
        "part.cumulative": np.where(at_least, every, 0.0).sum(axis=1),
        "part.place": at_least.sum(axis=1).astype(np.int16),
        "part.rank": first,
        "span.rank": ranks,  # (S, W) smallest rank whose labeling has the entity, 0 where none listed does
        "labeling.left_out": left,
        "labeling.count": counts,
        "labeling.listed": np.array([count], np.int16),
        "held.part": inverse.astype(np.int64),  # within the task until parts are joined
    }


def _actions(labels: npt.NDArray[np.int16], space: LabelSpace, truth: Sequence[Span], lost: int) -> Array:
    """Count the actions from nothing, then from each of the best labelings, to the truth; -1 where there is none."""
    result = np.full(SHOWN + 1, -1, np.int16)
    result[0] = len(truth) + lost
    for r, row in enumerate(labels):
        result[r + 1] = count_actions(space.spans(row), truth) + lost
    return result


def _join_arrays(pieces: Sequence[dict[str, Array]]) -> dict[str, Array]:
    """Put pieces one after the other: task numbers and part numbers go on where the piece before ended."""
    if not pieces:
        return {}
    tasks = np.cumsum([0, *(len(piece["task.length"]) for piece in pieces)])
    parts = np.cumsum([0, *(len(piece["part.task"]) for piece in pieces)])
    result: dict[str, Array] = {}
    for name in pieces[0]:
        shift = tasks if name in ("entity.task", "span.task", "part.task") else parts if name == "held.part" else None
        columns = [piece[name] for piece in pieces]
        if shift is not None:
            columns = [(column + by).astype(column.dtype) for column, by in zip(columns, shift[:-1], strict=True)]
        result[name] = np.concatenate(columns)
    return result


def join(parts: Sequence[Decoded], *, sources: Sequence[str]) -> Decoded:
    """Put the texts of several files, named by `sources`, one after the other; label spaces must agree."""
    languages = tuple(sorted({name for part in parts for name in part.languages}))
    pieces: list[dict[str, Array]] = []
    for number, part in enumerate(parts):
        place = np.array([languages.index(name) for name in part.languages], np.int16)
        own = dict(part.arrays)
        own["task.language"] = place[own["task.language"]]
        own["task.source"] = np.full(len(part), number, np.int16)
        pieces.append(own)
    return Decoded(parts[0].classes, languages, tuple(sources), _join_arrays(pieces))


def data_hash(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _key(tagger: Tagger, path: Path, *, rows: int | None, seed: int) -> str:
    parts = [FORMAT, tagger.hash, *tagger.space.classes, data_hash(path), str(rows), str(seed if rows else 0)]
    parts += [str(number) for number in (LISTED, DETAILED, SHOWN, P_MIN)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _save(decoded: Decoded, path: Path) -> None:
    header = {"format": FORMAT, "classes": decoded.classes, "languages": decoded.languages, "sources": decoded.sources}
    partial = path.with_suffix(".partial")
    arrays = {name: np.ascontiguousarray(array) for name, array in decoded.arrays.items()}
    save_file(arrays, partial, metadata={"surespan": json.dumps(header)})
    partial.replace(path)  # a file is there whole or not at all


def _load(path: Path) -> Decoded | None:
    """Read a cached file; None when it is not there or cannot be read, so that it is made again."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            header = json.loads((file.metadata() or {}).get("surespan", "{}"))
            if header.get("format") != FORMAT:
                return None
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            if not arrays:  # of a file without texts
                return None
    except (OSError, SafetensorError, json.JSONDecodeError):
        return None
    return Decoded(tuple(header["classes"]), tuple(header["languages"]), tuple(header["sources"]), arrays)
