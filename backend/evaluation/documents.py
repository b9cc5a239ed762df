"""Documents evaluated as units and as tasks: what sentences as units keep, and what whole texts would (METHODS 10).

Every text is scored once. Half of the documents calibrate, the others are tested, again and again. Intervals come from
a bootstrap over documents, because sentences of one document are no independent draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from backend.evaluation.study import LEVELS
from backend.prediction.make_starter import rows_of
from backend.prediction.scoring import ScoredText, score_labelled
from backend.tagger.errors import InvalidData
from backend.tagger.readers import LabelledText, join_documents, read_labelled
from backend.tagger.spans import Reason
from backend.tagger.tagger import Tagger
from backend.tagger.whole import WholeTexts
from conformal.metrics import covers
from conformal.rows import EntityRows, TaskRows
from conformal.strata import Strata
from conformal.thresholds import Thresholds, calibrate
from conformal.trellis import kbest

LISTED = 1_000  # sizes are counted up to this
_BOOTSTRAP = 2_000
_CHUNK = 16
_COLUMNS = (
    *("target", "covered", "95 %", "of a document", "all sentences", "whole texts"),
    *("one labeling", "empty", "open", "mean size"),
)
_SENTENCES = ((1, 1), (2, 5), (6, 15), (16, 40), (41, 10**9))

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Scored:
    """Rows of documents, and the best labelings of each row's unit: log-probabilities, -inf where there is none."""

    rows: TaskRows
    entities: EntityRows
    lists: npt.NDArray[np.float32]  # (units, LISTED)
    units: Ints  # (documents,) how many units each has

    def take(self, documents: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        return documents[self.rows.numbers]


def read_documents(files: Sequence[Path], *, classes: Sequence[str]) -> list[LabelledText]:
    """Read labelled files as documents; entities of classes that the model does not have are left out."""
    documents = [text for path in files for text in join_documents(read_labelled(path).texts)]
    known = set(classes)
    kept = [
        LabelledText(each.text, tuple(span for span in each.spans if span.label in known), each.language)
        for each in documents
    ]
    if len(kept) < 4:
        raise InvalidData(f"expected at least four documents, got {len(kept)}: half of them calibrate")
    return kept


def evaluate_documents(
    tagger: Tagger,
    documents: Sequence[LabelledText],
    *,
    splits: int = 20,
    seed: int = 0,
    alphas: Sequence[str] = LEVELS,
    n_min: int = 100,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """Return the figures of sentences as units and of whole texts, with the default strata and least count."""
    results: dict[str, Any] = {"documents": len(documents), "splits": splits, "n_min": n_min}
    for name, view in (("sentence", tagger), ("task", WholeTexts(tagger))):
        tell = partial(_tell, progress, name, len(documents))
        scored, described = _score(view, documents, tell)
        results[name] = described | _figures(scored, splits=splits, seed=seed, alphas=alphas, n_min=n_min)
    return results


def _tell(progress: Callable[[str, int, int], None] | None, name: str, total: int, done: int) -> None:
    if progress is not None:
        progress(name, done, total)


def _score(
    tagger: Tagger, documents: Sequence[LabelledText], tell: Callable[[int], object]
) -> tuple[_Scored, dict[str, Any]]:
    texts: list[ScoredText] = []
    lists: list[npt.NDArray[np.float32]] = []
    for item in score_labelled(tagger, documents, chunk=_CHUNK):
        if item.tagged.seen or not item.tagged.tokens:
            continue
        texts.append(item)
        for best in kbest(list(item.tagged.unit_chains()), LISTED):
            row = np.full(LISTED, -np.inf, np.float32)
            row[: best.count] = best.log_probabilities
            lists.append(row)
        tell(len(texts))
    lost = [item.reason for text in texts for item in text.alignment.inexpressible]
    spans = sum(len(text.alignment.spans) + len(text.alignment.inexpressible) for text in texts)
    rows, entities = rows_of(texts)
    described = {
        "texts": len(texts),
        "units": len(rows),
        "entities": spans,
        "cut by the splitter": sum(reason is Reason.CROSSES for reason in lost),
        "inexpressible": len(lost),
    }
    counts = np.array([len(text.units) for text in texts], np.int64)
    return _Scored(rows, entities, np.stack(lists), counts), described


def _figures(scored: _Scored, *, splits: int, seed: int, alphas: Sequence[str], n_min: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    count = scored.units.size
    shape = (len(alphas), splits, len(scored.rows))
    covered, sizes = np.full(shape, np.nan, np.float32), np.full(shape, np.nan, np.float32)
    pools = np.zeros(shape[1:], np.int64)
    for split in range(splits):
        chosen = np.zeros(count, np.bool_)
        chosen[rng.permutation(count)[: count // 2]] = True
        inside = scored.take(chosen)
        thresholds = calibrate(scored.rows.take(inside), classes=("-",), strata=Strata(), n_min=n_min)
        test = np.flatnonzero(~inside)
        part = scored.rows.take(test)
        for a, alpha in enumerate(alphas):
            answers = covers(thresholds, part, alpha)
            covered[a, split, test] = answers.covered
            pools[split, test] = answers.pool
            sizes[a, split, test] = _sizes(thresholds, part, scored.lists[test], alpha)
    lengths = np.array([cell.rpartition("/")[2] for cell in scored.rows.cells])
    return {
        "levels": [
            _level(alpha, covered[a], sizes[a], pools, scored, lengths, seed=seed) for a, alpha in enumerate(alphas)
        ]
    }


def _sizes(thresholds: Thresholds, part: TaskRows, lists: npt.NDArray[np.float32], alpha: str) -> Floats:
    """Return the size of each unit's set, `LISTED` where it is larger and +inf where it is open."""
    touched: dict[int, set[str]] = {}
    cells = part.cells
    for number, cell in zip(part.numbers.tolist(), cells, strict=True):
        touched.setdefault(number, set()).add(cell)
    taus = np.array(
        [
            thresholds.pool(cell, beside=touched[number]).table.threshold(alpha)
            for number, cell in zip(part.numbers.tolist(), cells, strict=True)
        ]
    )
    held = (-lists <= taus[:, None].astype(np.float32)).sum(axis=1)
    return np.where(np.isposinf(taus), np.inf, held.astype(np.float64))


def _level(
    alpha: str,
    covered: npt.NDArray[np.float32],
    sizes: npt.NDArray[np.float32],
    pools: Ints,
    scored: _Scored,
    lengths: npt.NDArray[Any],
    *,
    seed: int,
) -> dict[str, Any]:
    numbers = scored.rows.numbers
    everything = np.ones(numbers.size, np.bool_)
    tested = ~np.isnan(covered)
    closed = np.isfinite(sizes)
    whole = _whole(covered, numbers, scored.units.size)
    return {
        "target": 1 - float(alpha),
        "promise": _by_document(covered, numbers, scored.units.size, everything, seed, pools=pools),
        "by document": _by_document(covered, numbers, scored.units.size, everything, seed),
        "all sentences": float(np.nanmean(covered)),
        "whole texts": float(np.nanmean(whole)),
        "one labeling": float((sizes[tested] == 1).mean()),
        "empty": float((sizes[tested] == 0).mean()),
        "open": float(np.isinf(sizes[tested]).mean()),
        "mean size": float(np.maximum(1, sizes[closed]).mean()) if closed.any() else None,
        "lengths": {
            name: _by_document(covered, numbers, scored.units.size, lengths == name, seed)
            for name in sorted(set(lengths.tolist()), key=lambda each: int(each.rstrip("+").split("-")[0]))
        },
        "sentences": {
            f"{low}" if low == high else f"{low}-{high}" if high < 10**9 else f"{low}+": {
                **_by_document(covered, numbers, scored.units.size, np.isin(numbers, held), seed),
                "documents": int(held.size),
                "whole texts": float(np.nanmean(whole[:, held])),
            }
            for low, high in _SENTENCES
            if (held := np.flatnonzero((scored.units >= low) & (scored.units <= high))).size
        },
    }


def _by_document(
    covered: npt.NDArray[np.float32],
    numbers: Ints,
    count: int,
    chosen: npt.NDArray[np.bool_],
    seed: int,
    *,
    pools: Ints | None = None,
) -> dict[str, Any]:
    """Return the mean over documents of the share of their units covered, with a bootstrap interval over documents.

    With `pools` a document counts once in every pool that it touches, with its units there: what is promised.
    """
    sums, known = np.zeros(count), np.zeros(count)
    for split, row in enumerate(covered):
        held = chosen & ~np.isnan(row)
        parts = np.zeros(row.size, np.int64) if pools is None else pools[split]
        width = int(parts.max(initial=0)) + 1
        keys = numbers[held] * width + parts[held]
        units = np.bincount(keys, minlength=count * width).reshape(count, width)
        hits = np.bincount(keys, weights=row[held], minlength=count * width).reshape(count, width)
        there = units > 0
        sums += np.where(there, hits / np.maximum(units, 1), 0.0).sum(axis=1)
        known += there.sum(axis=1)
    hit, seen = sums[known > 0], known[known > 0]
    if not seen.size:
        return {"coverage": None, "interval_95": None, "documents": 0}
    drawn = np.random.default_rng(seed).integers(0, seen.size, (_BOOTSTRAP, seen.size))
    low, high = np.quantile(hit[drawn].sum(axis=1) / seen[drawn].sum(axis=1), [0.025, 0.975])
    coverage = float(hit.sum() / seen.sum())
    return {"coverage": coverage, "interval_95": [float(low), float(high)], "documents": int(seen.size)}


def _whole(covered: npt.NDArray[np.float32], numbers: Ints, count: int) -> Floats:
    """Return, by split and document, whether all its units are covered; NaN where it calibrated."""
    result = np.full((covered.shape[0], count), np.nan)
    for split, row in enumerate(covered):
        held = ~np.isnan(row)
        units = np.bincount(numbers[held], minlength=count)
        hits = np.bincount(numbers[held], weights=row[held], minlength=count)
        result[split, units > 0] = (hits == units)[units > 0]
    return result


def document_report(results: dict[str, Any]) -> str:
    """Return the figures as a Markdown page."""
    about = (
        f"{results['documents']:,} documents, {results['splits']} random splits by documents, half of them calibrate; "
        f"nc1, default strata, at least {results['n_min']} labelled documents a pool. *Covered* is what is promised: a "
        "random sentence, among those of a pool, of a random document that has one there (METHODS 10.2), with a 95 % "
        "bootstrap interval over documents. *Of a document*: a random sentence among all of a random document. Sizes "
        f"are counted up to {LISTED:,}."
    )
    lines = ["# Documents", "", about, ""]
    for name, title in (("sentence", "Sentences as units"), ("task", "Whole texts as units")):
        found = results[name]
        counts = (
            f"{found['texts']:,} texts, {found['units']:,} units, {found['entities']:,} entities, of which the "
            f"sentence splitter cuts {found['cut by the splitter']:,}; {found['inexpressible']:,} cannot be expressed."
        )
        lines += [
            f"## {title}",
            "",
            counts,
            "",
            f"| {' | '.join(_COLUMNS)} |",
            "|" + "---|" * len(_COLUMNS),
        ]
        for level in found["levels"]:
            promise = level["promise"]
            size = "" if level["mean size"] is None else f"{level['mean size']:.1f}"
            shares = [level["by document"]["coverage"]]
            shares += [level[key] for key in ("all sentences", "whole texts", "one labeling", "empty", "open")]
            lines.append(
                f"| {level['target']:g} | {promise['coverage']:.4f} | {_interval(promise)} | "
                + " | ".join(f"{share:.3f}" for share in shares)
                + f" | {size} |"
            )
        lines += ["", *_breakdown(found, "lengths", "words in the sentence" if name == "sentence" else "words")]
        lines += ["", *_breakdown(found, "sentences", "units in the text"), ""]
    return "\n".join(lines)


def _breakdown(found: dict[str, Any], key: str, title: str) -> list[str]:
    names = list(dict.fromkeys(name for level in found["levels"] for name in level[key]))
    targets = [f"{level['target']:g}" for level in found["levels"]]
    lines = [f"| {title} | documents | {' | '.join(targets)} |", "|---|---|" + "---|" * len(targets)]
    for name in names:
        cells = [level[key].get(name) for level in found["levels"]]
        shown = [
            "" if cell is None or cell["coverage"] is None else f"{cell['coverage']:.3f} ({_interval(cell)})"
            for cell in cells
        ]
        lines.append(f"| {name} | {max(cell['documents'] for cell in cells if cell)} | {' | '.join(shown)} |")
    return lines


def _interval(figure: dict[str, Any]) -> str:
    low, high = figure["interval_95"]
    return f"{low:.3f} to {high:.3f}"
