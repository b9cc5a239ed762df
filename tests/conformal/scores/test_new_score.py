"""A new full-sequence score is one class and one line in the table: calibration, tuning and sets follow."""

from __future__ import annotations

import numpy as np
import pytest

from conformal.errors import InvalidArgument
from conformal.labels import LabelSpace
from conformal.prediction import predict_set
from conformal.quantile import Floats
from conformal.rows import TaskRows, score_unit, task_rows
from conformal.scores import SCORES, Boundary, Choice, Method, Ranks, Score, Tuned, TuningPart, hash_u
from conformal.thresholds import Thresholds, calibrate
from conformal.trellis import Potentials, kbest

SPACE = LabelSpace(["PER", "LOC"])
L = len(SPACE)
CELL = "en/1-10"


class SquareRoot(Score):
    """-log P plus the square root of the rank."""

    name = "square_root"
    limit = 500

    def values(self, ranks: Ranks, *, tuned: Tuned, limit: int | None) -> Floats:  # noqa: ARG002
        return np.where(ranks.expressible, np.sqrt(ranks.rank) - ranks.log_probability, np.inf)


class Charged(Score):
    """-log P plus a frozen price for every rank after the first."""

    name = "charged"
    tunes = True

    def values(self, ranks: Ranks, *, tuned: Tuned, limit: int | None) -> Floats:  # noqa: ARG002
        return np.where(ranks.expressible, tuned.lam * (ranks.rank - 1) - ranks.log_probability, np.inf)

    def choices(self, part: TuningPart) -> list[Choice]:
        return [Choice(Tuned(lam=1 / float(np.mean(part.tasks.ranks.rank))))]


@pytest.fixture(autouse=True)
def entered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCORES, "square_root", SquareRoot())
    monkeypatch.setitem(SCORES, "charged", Charged())


def text(rng: np.random.Generator) -> Potentials:
    return Potentials(
        emissions=rng.normal(0, 1.5, (int(rng.integers(2, 5)), L)) + np.array([1.5, 0, 0, 0, 0]),
        transitions=np.where(SPACE.allowed, 0.0, -np.inf),
        start=np.where(SPACE.allowed_start, 0.0, -np.inf),
        end=np.zeros(L),
    )


@pytest.fixture(scope="module")
def corpus() -> tuple[list[Potentials], TaskRows]:
    rng = np.random.default_rng(3)
    texts = [text(rng) for _ in range(260)]
    scores = []
    for task, p in enumerate(texts):
        every = kbest(p, 2000)
        share = np.exp(every.log_probabilities)
        spans = SPACE.spans(every.labels[rng.choice(every.count, p=share / share.sum())])
        scores.append(score_unit(p, SPACE, spans=spans, task=task))
    return texts, task_rows([CELL] * len(texts), scores)


@pytest.mark.parametrize("name", ["square_root", "charged"])
@pytest.mark.parametrize("boundary", [Boundary.INCLUDE, Boundary.SMOOTHED])
def test_a_new_score_calibrates_is_kept_and_makes_its_sets(
    corpus: tuple[list[Potentials], TaskRows], name: str, boundary: Boundary
) -> None:
    texts, rows = corpus
    made = calibrate(rows.take(np.arange(220)), classes=SPACE.classes, method=Method(name, boundary), n_min=50)
    thresholds = Thresholds.from_bytes(made.to_bytes())
    assert thresholds.to_bytes() == made.to_bytes()
    method = thresholds.method
    assert (method.name, method.worth, method.makes_heads, method.goes_on) == (name, "exact", True, False)
    assert not method.needs_tuning
    assert (method.tuned is None) == (name == "square_root")
    table = thresholds.pool(CELL).table
    sizes = set()
    for task, p in enumerate(texts[220:]):
        u = hash_u("new", task) if boundary is Boundary.SMOOTHED else None
        found = predict_set(p, SPACE, stratum=CELL, thresholds=thresholds, alpha="0.1", u=u)
        every = method.scores(Ranks.of_list(kbest(p, 10**4).log_probabilities))
        draws = None if u is None else np.full(every.size, u)
        assert found.set_size == int(table.contains(every, "0.1", u=draws).sum())
        sizes.add(found.set_size)
    assert len(sizes) > 2


def test_a_new_score_is_named_like_the_others() -> None:
    assert Method("square_root/raps+nc1").span_name == "raps+nc1"
    assert Method("square_root").limit == 500
    assert Method("square_root", top_k=20).limit == 20
    with pytest.raises(InvalidArgument, match=r"among nc1, .*, square_root, charged, got 'cube_root'"):
        Method("cube_root")
    with pytest.raises(InvalidArgument, match="the other rules exist for nc1, nc2 and nc3"):
        Method("square_root", Boundary.EARLY)
    with pytest.raises(InvalidArgument, match="tuned values"):
        Method("charged").scores(Ranks.of_list([-0.5]))
