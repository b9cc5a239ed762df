"""How well second looks find planted errors, against a plain list of the least probable labels.

Every text is decoded once, with its right label and with one planted error; trials then draw which labels are wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from backend.domain.priority import review_value
from backend.domain.ranked import one_unit
from backend.evaluation.actions import count_actions
from backend.evaluation.planted import KINDS, plant_error
from backend.review.second_looks import P_MIN, best_list, find_looks
from backend.store.second_looks import LookTable
from backend.tagger.readers import LabelledText
from backend.tagger.spans import to_token_spans
from backend.tagger.tagger import Tagger
from conformal.discoveries import discover, reference_p_values, weakest_label
from conformal.quantile import Floats
from conformal.subsequence import Ints, candidate_spans, listing_floor
from conformal.trellis import entity_marginals, kbest, log_probability

_CHUNK = 256


@dataclass(frozen=True, eq=False)
class PlantedTexts:
    """T texts, each with its right label and a wrong one; texts whose label the model cannot express are left out.

    `score` and `nll` are (T, 2): of the right and of the wrong label. `kind` numbers the error in `KINDS`. `best` is
    -log P of the best labeling, `review` the queue's value of a look, `wrong` whether the best labeling is not the
    right label, `corrections` how many changes it needs, `place` the text's number in its file.
    """

    score: Floats
    nll: Floats
    kind: Ints
    best: Floats
    review: Floats
    length: Ints
    wrong: npt.NDArray[np.bool_]
    corrections: Ints
    place: Ints

    def __len__(self) -> int:
        return int(self.kind.size)

    def save(self, path: Path) -> None:
        """Write the arrays to a file."""
        save_file({each.name: np.ascontiguousarray(getattr(self, each.name)) for each in fields(self)}, path)

    @classmethod
    def load(cls, path: Path) -> PlantedTexts:
        """Read what `save` wrote."""
        return cls(**load_file(path))

    @classmethod
    def join(cls, parts: Sequence[PlantedTexts]) -> PlantedTexts:
        """Put texts one after the other."""
        return cls(*(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(cls)))

    def take(self, rows: Ints) -> PlantedTexts:
        """Return the texts at these places."""
        return PlantedTexts(*(getattr(self, each.name)[rows] for each in fields(self)))


def decode_planted(
    tagger: Tagger,
    texts: Sequence[LabelledText],
    *,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> PlantedTexts:
    """Decode texts, plant an error in each label, and score both labels."""
    rng, space = np.random.default_rng(seed), tagger.space
    rows: list[tuple[Any, ...]] = []
    for first in range(0, len(texts), _CHUNK):
        part = texts[first : first + _CHUNK]
        tagged = tagger.potentials([text.text for text in part], languages=[text.language for text in part])
        potentials = [each.potentials for each in tagged]
        marginals = entity_marginals(potentials, space, floor=listing_floor(space, P_MIN))
        tops = kbest(potentials, 1)
        for number, (text, tagged_text, entities, top) in enumerate(
            zip(part, tagged, marginals, tops, strict=True), first
        ):
            aligned = to_token_spans(
                text.spans, tagged_text.tokens, text=text.text, boundaries=tagged_text.boundaries, classes=space.classes
            )
            words = [text.text[token.start : token.end] for token in tagged_text.tokens]
            if aligned.inexpressible or not words or tagged_text.seen:
                continue
            planted = plant_error(
                aligned.spans, words, classes=space.classes, rng=rng, boundaries=tuple(tagged_text.boundaries)
            )
            if planted is None:
                continue
            best = space.spans(top.labels[0])
            candidates = candidate_spans(entities, space, p_min=P_MIN, extra=best)
            listed = best_list(space, top, candidates)
            both = (aligned.spans, planted.spans)
            rows.append(
                (
                    [weakest_label(tagged_text.potentials, space, spans=spans).score for spans in both],
                    [-log_probability(tagged_text.potentials, space.ids(spans, len(words))) for spans in both],
                    KINDS.index(planted.kind),
                    -listed.log_probabilities[0],
                    review_value(one_unit(listed)),
                    len(words),
                    set(best) != set(aligned.spans),
                    count_actions(best, aligned.spans),
                    number,
                )
            )
        if progress is not None:
            progress(min(first + _CHUNK, len(texts)))
    columns: list[Any] = list(zip(*rows, strict=True)) if rows else [[] for _ in range(9)]
    kinds = (np.float64, np.float64, np.int64, np.float64, np.float64, np.int64, np.bool_, np.int64, np.int64)
    made_columns: list[Any] = [np.array(column, dtype=kind) for column, kind in zip(columns, kinds, strict=True)]
    made_columns[:2] = [each.reshape(-1, 2) for each in made_columns[:2]]
    return PlantedTexts(*made_columns)


@dataclass(frozen=True)
class Trial:
    """What became of one draw of wrong labels; see `run_trial`. Shares are of the wrong labels outside the reference.

    `plain_*` are of the list of least probable labels: with the same length, and the precision at the same recall.
    """

    checks: int
    found_by_checks: int
    listed: int
    precision: float
    recall: float
    plain_precision: float
    plain_recall: float
    plain_precision_at_recall: float
    found: float
    recall_by_kind: tuple[float, ...]
    false: tuple[int, ...]


def run_trial(
    data: PlantedTexts, *, rng: np.random.Generator, share: float = 0.05, fdr: str = "0.1", most_checks: int = 10**6
) -> Trial:
    """Draw wrong labels, let somebody who knows better check what is asked, and judge the list that comes of it.

    Every label is of a randomly drawn text. Corrected labels are the right ones. `found` is the share of all wrong
    labels that the checks and the list hold together; `false` are the texts on the list whose label was not planted.
    """
    size = len(data)
    wrong = rng.random(size) < share
    place, settled = rng.random(size), np.zeros(size, np.bool_)
    still = wrong.copy()
    checks = 0
    while True:
        at = still.astype(np.int64)
        scores = np.take_along_axis(data.score, at[:, None], axis=1)[:, 0]
        table = LookTable(np.arange(size), scores, data.review, place, np.ones(size, np.bool_), settled, settled)
        lists = find_looks(table, fdr=fdr)
        if not lists.check or checks >= most_checks:
            break
        ask = np.array(lists.check, dtype=np.int64)[: most_checks - checks]
        checks += ask.size
        settled[ask], still[ask] = True, False
    outside = np.ones(size, np.bool_)
    outside[lists.reference] = False
    rest = np.flatnonzero(outside)
    listed = np.zeros(size, np.bool_)
    listed[list(lists.listed)] = True
    hits, total = int((listed & wrong).sum()), int(wrong[rest].sum())
    nll = np.take_along_axis(data.nll, wrong.astype(np.int64)[:, None], axis=1)[:, 0]
    plain = rest[np.argsort(-nll[rest], kind="stable")]
    right_so_far = np.cumsum(wrong[plain])
    length = int(listed.sum())
    same = int(right_so_far[length - 1]) if length else 0
    reached = np.flatnonzero(right_so_far >= hits)
    return Trial(
        checks=checks,
        found_by_checks=int((wrong & ~still).sum()),
        listed=length,
        precision=hits / length if length else float("nan"),
        recall=hits / max(total, 1),
        plain_precision=same / length if length else float("nan"),
        plain_recall=same / max(total, 1),
        plain_precision_at_recall=hits / (int(reached[0]) + 1) if hits and reached.size else float("nan"),
        found=float((wrong & (listed | ~still)).sum() / max(wrong.sum(), 1)),
        recall_by_kind=tuple(
            float((listed & wrong & (data.kind == k)).sum() / max((wrong & outside & (data.kind == k)).sum(), 1))
            for k in range(len(KINDS))
        ),
        false=tuple(np.flatnonzero(listed & ~wrong).tolist()),
    )


def queue_trial(data: PlantedTexts, *, rng: np.random.Generator, first: float = 0.2) -> dict[str, tuple[float, float]]:
    """Return, for each order of unlabelled texts, the share of wrong best labelings, and of corrections, found early.

    `first` is the share of the texts that is looked at.
    """
    orders = {
        "random": rng.random(len(data)),
        "least confidence": data.best,
        "length-normalised log-probability": data.best / np.maximum(data.length, 1),
        "the queue's value of a look": data.review,
    }
    count = round(first * len(data))
    shares = {}
    for name, values in orders.items():
        head = np.argsort(-values, kind="stable")[:count]
        shares[name] = (
            float(data.wrong[head].sum() / max(data.wrong.sum(), 1)),
            float(data.corrections[head].sum() / max(data.corrections.sum(), 1)),
        )
    return shares


def label_order_trial(
    data: PlantedTexts, *, rng: np.random.Generator, share: float = 0.05, first: float = 0.2
) -> dict[str, float]:
    """Return, for each order of *labelled* texts, the share of planted errors among the first."""
    wrong = rng.random(len(data)) < share
    at = wrong.astype(np.int64)[:, None]
    score = np.take_along_axis(data.score, at, axis=1)[:, 0]
    nll = np.take_along_axis(data.nll, at, axis=1)[:, 0]
    orders = {
        "random": rng.random(len(data)),
        "probability of the label": nll,
        "probability of the label, by length": nll / np.maximum(data.length, 1),
        "least plausible word (second looks)": score,
    }
    count = round(first * len(data))
    return {
        name: float(wrong[np.argsort(-values, kind="stable")[:count]].sum() / max(wrong.sum(), 1))
        for name, values in orders.items()
    }


def picked_trial(
    data: PlantedTexts, *, rng: np.random.Generator, share: float = 0.05, fdr: str = "0.1", top: float = 0.2
) -> dict[str, tuple[float, float]]:
    """Return (share of right labels on the list, recall) for labels of tasks that a queue picked by the model's doubt.

    Half of the texts are drawn at random and rightly labelled; of the other half the most doubtful (`top`) are
    labelled, some wrongly. Compared are one reference for all, and the groups of equal doubt that are used.
    """
    size = len(data)
    drawn = rng.permutation(size) < size // 2
    others = np.flatnonzero(~drawn)
    picked = others[np.argsort(-data.review[others], kind="stable")[: round(top * others.size)]]
    wrong = np.zeros(size, np.bool_)
    wrong[picked] = rng.random(picked.size) < share
    kept = np.concatenate([np.flatnonzero(drawn), picked])
    scores = np.take_along_axis(data.score, wrong.astype(np.int64)[:, None], axis=1)[:, 0]
    blank = np.zeros(kept.size, np.bool_)
    table = LookTable(kept, scores[kept], data.review[kept], rng.random(kept.size), drawn[kept], blank, blank)
    grouped = find_looks(table, fdr=fdr)
    listed = {
        "one reference for all": picked[
            discover(reference_p_values(scores[picked], scores[kept[grouped.reference]]), fdr)
        ],
        "groups of equal doubt": kept[[at for at in grouped.listed if not table.drawn[at]]],
    }
    return {
        name: (float((~wrong[rows]).mean()) if rows.size else 0.0, float(wrong[rows].sum() / max(wrong.sum(), 1)))
        for name, rows in listed.items()
    }
