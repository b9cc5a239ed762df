"""Collections of tasks whose gold labels the tests know, and the loop run on them through the product's own parts.

A task is its stratum, the score of its gold labeling, the probability of the best labeling (what a review queue orders
by), and the probabilities of its 64 best labelings (what a set's size is counted on). Real ones are sentences of nine
languages under the bundled model, scored once and kept; simulated ones need no data.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from backend.domain.records import Draw
from backend.domain.streams import Order, OrderHistory, Sighting, draw_task, exclusion_of, order_history, uniforms
from backend.review.blind_priorities import blind_priority
from conformal.quantile import rank
from conformal.rows import TaskRows
from conformal.strata import Strata
from conformal.thresholds import Thresholds
from tests.support.data import benchmark_data

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

LANGUAGES = ("de", "en", "es", "fr", "it", "nl", "pl", "pt", "ru")
LISTED = 64
PER_FILE = 3000
NOW = datetime(2026, 3, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Collection:
    """Tasks with known gold labels; arrays of one length."""

    cells: npt.NDArray[np.str_]
    nll: Floats  # of the gold labeling, +inf where the model cannot express it
    rank: Floats  # of the gold labeling, +inf beyond the limit
    listed: Floats  # (tasks, LISTED) log-probabilities of the best labelings, -inf where there are no more
    source: str

    def __len__(self) -> int:
        return self.nll.size

    @property
    def best(self) -> Floats:
        """Probability of the best labeling: a task's score."""
        return np.exp(self.listed[:, 0])

    @property
    def right(self) -> Bools:
        """Whether the best labeling is the gold one."""
        return self.rank == 1

    def take(self, index: npt.ArrayLike) -> Collection:
        at = np.asarray(index)
        return Collection(self.cells[at], self.nll[at], self.rank[at], self.listed[at], self.source)

    def rows(self, index: npt.ArrayLike, *, nll: Floats | None = None, weight: Floats | None = None) -> TaskRows:
        """Return calibration rows of some tasks; `nll` where their labels are not the gold ones."""
        at = np.asarray(index)
        scores = (self.nll if nll is None else nll)[at]
        return TaskRows.of(self.cells[at].tolist(), -scores, task=at, weight=weight)


def collection(size: int, *, seed: int = 0) -> Collection:
    """Return real tasks where the data lies beside the project, else simulated ones."""
    found = simulate(max(size, 27_000), seed=1) if benchmark_data() is None else real()
    chosen = np.random.default_rng(seed).permutation(len(found))[:size]
    return found.take(np.sort(chosen))


def simulate(size: int, *, seed: int) -> Collection:
    """Make tasks whose difficulty depends on language and length and is partly seen in the best probability."""
    rng = np.random.default_rng(seed)
    language = rng.integers(0, len(LANGUAGES), size)
    bins = rng.choice(5, size, p=[0.15, 0.4, 0.25, 0.12, 0.08])
    hardness = rng.beta(0.16 + 0.04 * bins, 1.8 - 0.05 * language)
    best = 1.0 - 0.9 * hardness
    shares = 0.55 ** np.arange(LISTED - 1) * rng.uniform(0.5, 1.0, (size, LISTED - 1))
    shares *= ((1 - best) / shares.sum(axis=1))[:, None]
    probabilities = np.sort(np.column_stack([best, shares]), axis=1)[:, ::-1]
    # The model is a little too sure of itself: the truth comes from its own probabilities, somewhat flattened.
    flat = probabilities**0.9
    cumulative = np.cumsum(flat / flat.sum(axis=1, keepdims=True), axis=1)
    place = (cumulative < rng.random(size)[:, None]).sum(axis=1)
    lost = (rng.random(size) < 0.002) | (place >= LISTED)
    with np.errstate(divide="ignore"):
        logs = np.log(probabilities)
    nll = -np.take_along_axis(logs, np.minimum(place, LISTED - 1)[:, None], axis=1)[:, 0]
    names = Strata().length_bins
    cells = np.array([f"{LANGUAGES[a]}/{names[b]}" for a, b in zip(language, bins, strict=True)])
    return Collection(
        cells, np.where(lost, np.inf, nll), np.where(lost, np.inf, place + 1.0), logs, f"{size:,} simulated tasks"
    )


def real() -> Collection:
    """Return sentences of nine languages as the bundled model sees them; scored once, then read from a file."""
    from backend.tagger.loading import load_tagger

    tagger = load_tagger()
    data = benchmark_data()
    assert data is not None
    parts = [_kept(tagger, data / "wikineural" / f"{language}.test.conllu.gz") for language in LANGUAGES]
    return Collection(
        np.concatenate([part.cells for part in parts]),
        np.concatenate([part.nll for part in parts]),
        np.concatenate([part.rank for part in parts]),
        np.concatenate([part.listed for part in parts]),
        f"{sum(len(part) for part in parts):,} sentences of nine languages under the bundled model",
    )


def _kept(tagger: object, path: Path, *, rows: int = PER_FILE) -> Collection:
    """Read the scores of a file's sample, made if they are not kept yet."""
    cache = Path(os.environ.get("SURESPAN_TEST_CACHE", ".pytest_cache/loop"))
    cache.mkdir(parents=True, exist_ok=True)
    key = hashlib.sha256(f"{tagger.hash} {rows} {LISTED}".encode() + path.read_bytes()).hexdigest()[:16]
    kept = cache / f"{path.name.split('.')[0]}-{key}.npz"
    if not kept.exists():
        part = score_file(tagger, chosen_texts(path, rows=rows))
        with kept.with_suffix(".partial").open("wb") as file:
            np.savez(file, cells=part.cells, nll=part.nll, rank=part.rank, listed=part.listed)
        kept.with_suffix(".partial").replace(kept)
    with np.load(kept) as arrays:
        return Collection(*(arrays[name] for name in ("cells", "nll", "rank", "listed")), path.name)


def real_news() -> Collection:
    """Return English news sentences as the bundled model sees them: another domain than its encyclopedia."""
    from backend.tagger.loading import load_tagger

    data = benchmark_data()
    assert data is not None
    return _kept(load_tagger(), data / "conllpp" / "test.txt.gz", rows=1000)


def chosen_texts(path: Path, *, rows: int = PER_FILE) -> list:
    """Return the sample of a file that is scored."""
    from backend.tagger.readers import read_labelled

    texts = read_labelled(path).texts
    return [texts[i] for i in np.sort(np.random.default_rng(0).permutation(len(texts))[:rows]).tolist()]


def score_file(tagger: object, texts: list) -> Collection:
    """Score the gold labels of texts, and list the best labelings of each."""
    from backend.prediction.scoring import score_labelled
    from conformal.trellis import kbest

    cells, nll, ranks, listed = [], [], [], []
    for item in score_labelled(tagger, texts):
        best = kbest(item.tagged.potentials, LISTED).log_probabilities
        cells.append(item.cell)
        nll.append(-item.scores.log_probability)
        ranks.append(float(item.scores.rank) if item.scores.rank else np.inf)
        listed.append(np.pad(best, (0, LISTED - best.size), constant_values=-np.inf))
    return Collection(np.array(cells), np.array(nll), np.array(ranks), np.array(listed), "")


def history(order: Order) -> OrderHistory:
    """A project whose tasks were always given out in one order."""
    return order_history([Sighting(NOW, order)], since=NOW)


def draws(count: int, *, salt: str, order: Order, audit_share: float = 0.1, blind: float = 0.1) -> list[Draw]:
    """Draw for every task of a project before anyone sees it, as the service does."""
    return [
        draw_task(salt, "1.1", str(task), order=order, audit_share=audit_share, blind=blind) for task in range(count)
    ]


def queue_order(tasks: Collection, drawn: list[Draw], *, salt: str, hard_first: bool) -> Ints:
    """Return the order in which a queue by score gives tasks out; blind tasks stand where a random task would."""
    scores = tasks.best.copy()
    blind = np.array([draw.blind for draw in drawn])
    shown = np.sort(scores[~blind]).tolist()
    for task in np.flatnonzero(blind).tolist():
        scores[task] = blind_priority(uniforms(salt, "1.1", str(task)).v, shown)
    place = np.array([draw.random_order for draw in drawn])  # equal scores: by chance
    return np.lexsort((place, scores if hard_first else -scores))


def may_calibrate(drawn: list[Draw], labelled: Ints, order: Order) -> Bools:
    """Say which of the labelled tasks may calibrate, by the product's own rule."""
    known = history(order)
    return np.array([exclusion_of(drawn[task], known, NOW) is None for task in labelled.tolist()])


def covered_by(thresholds: Thresholds, tasks: Collection, index: npt.ArrayLike, alpha: str) -> Bools:
    """Return whether the set of each task holds its gold label."""
    at = np.asarray(index)
    taus = {cell: thresholds.threshold(cell, alpha) for cell in set(tasks.cells[at].tolist())}
    return tasks.nll[at] <= np.array([taus[cell] for cell in tasks.cells[at].tolist()])


def mean_size(thresholds: Thresholds, tasks: Collection, index: npt.ArrayLike, alpha: str) -> float:
    """Return the mean size of the sets, each cut at what is listed."""
    at = np.asarray(index)
    taus = np.array([thresholds.threshold(cell, alpha) for cell in tasks.cells[at].tolist()])
    return float(np.maximum((-tasks.listed[at] <= taus[:, None]).sum(axis=1), 1).mean())


def law_of(
    thresholds: Thresholds, tasks: Collection, index: npt.ArrayLike, alpha: str, *, draws: int = 20_000, seed: int = 0
) -> Floats:
    """Draw from the law of the covered count: BetaBinomial(m; k, n+1-k) of each pool's m tasks (METHODS 8.5).

    An infinite threshold covers all.
    """
    rng = np.random.default_rng(seed)
    pools = [thresholds.pool(cell).pool for cell in tasks.cells[np.asarray(index)].tolist()]
    total = np.zeros(draws)
    for name in sorted({pool.name for pool in pools}):
        mine = [pool for pool in pools if pool.name == name]
        n = mine[0].n
        k = rank(n, alpha) if mine[0].calibrated else n + 1
        if k > n:
            total += len(mine)
        else:
            total += rng.binomial(len(mine), rng.beta(k, n + 1 - k, draws))
    return total


def two_sided(law: Floats, covered: int) -> float:
    """Return the two-sided p-value of a covered count under its law."""
    low, high = np.mean(law <= covered), np.mean(law >= covered)
    return float(min(1.0, 2 * min(low, high)))


def band(law: Floats, level: float) -> tuple[float, float]:
    """Return the central band that holds the covered count with probability 1 - level."""
    low, high = np.quantile(law, [level / 2, 1 - level / 2])
    return float(low), float(high)
