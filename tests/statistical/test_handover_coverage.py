"""Coverage after automatic hand-overs: a project trains itself models again and again, and its sets keep the promise.

No model knows the project's labels. People label in uniform order or as the review queue asks, accept three of ten
wrong prelabels, and are right where they see none. Models are trained, promoted and calibrated by the product itself.
Judged is the last model with its last thresholds, by the law of the covered count (METHODS 8.5), on tasks that are
drawn from the same source as the blind ones it was calibrated on: under uniform order those that nobody labelled, under
review order those that had not been imported (what a queue leaves over is no random part of the collection; its share
is printed).

Which labels trained a model, and that none of them was drawn for calibration, is read from the database in plain SQL.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from backend.domain.streams import Order
from backend.settings import load_settings
from backend.tagger.readers import LabelledText, read_labelled
from tests.support.data import require_benchmark_data
from tests.support.learning_world import Habits, learning_project
from tests.support.loop_world import band, covered_by, law_of, two_sided
from tests.support.toy_texts import untidy_texts

ALPHA = "0.1"
SEEDS = 3  # of the trial on real text: a project takes minutes
ORDERS = (Order.UNIFORM, Order.REVIEW)


@dataclass(frozen=True)
class Outcome:
    """What became of one project: hand-overs, rows behind the last thresholds, how often its sets hold the truth."""

    trainings: int
    handovers: int
    n: int
    guarantee: str
    stamped: int
    covered: int
    total: int
    band: tuple[float, float]
    p: float
    left: float  # covered share of what the project has not labelled yet


@dataclass(frozen=True)
class Size:
    """How large a project is: tasks that are imported, where models are trained, and labels after the last of them."""

    imported: int
    last: int
    after: int
    step: int
    n_min: int
    blind: float
    judged: int


def run(
    file: Path,
    texts: list[LabelledText],
    labels: tuple[str, ...],
    *,
    order: Order,
    seed: int,
    size: Size,
    **settings: str,
) -> Outcome:
    """Let a project learn, and judge what it serves in the end; `file` is a database without rows."""
    shuffled = [texts[i] for i in np.random.default_rng([seed, 3]).permutation(len(texts)).tolist()]
    inside, outside = shuffled[: size.imported], shuffled[size.imported :][: size.judged]
    chosen = load_settings(
        database_url=f"sqlite:///{file}",
        alpha=ALPHA,
        n_min=size.n_min,
        blind=size.blind,
        audit_share=size.blind,
        unit="task",
        learn="auto",
        worker=False,
        sync_every_minutes=0,
        max_sequences=100,
        **settings,
    )
    with learning_project(chosen, inside, order=order, labels=labels, seed=seed, habits=Habits(0.3)) as project:
        project.work(size.last + size.after, step=size.step)
        version, thresholds = project.version(), project.thresholds()
        left = [inside[number] for number in project.waiting]
        tested = [*left, *outside] if order is Order.UNIFORM else outside
        judged = project.judge(tested)
        rest = project.judge(left)
        at, every = np.arange(len(judged)), np.arange(len(rest))
        covered = int(covered_by(thresholds, judged, at, ALPHA).sum())
        law = law_of(thresholds, judged, at, ALPHA, seed=seed)
        return Outcome(
            trainings=trainings(file),
            handovers=len(project.served_models),
            n=version.n,
            guarantee=version.guarantee,
            stamped=project.stamped,
            covered=covered,
            total=len(judged),
            band=band(law, 0.05),
            p=two_sided(law, covered),
            left=float(covered_by(thresholds, rest, every, ALPHA).mean()),
        )


def trainings(file: Path) -> int:
    with closing(sqlite3.connect(file)) as database:
        return int(database.execute("SELECT count(DISTINCT model_hash) FROM training_tasks").fetchone()[0])


def check_training_sets(file: Path) -> None:
    """No label that was drawn to calibrate taught any model, and no row that calibrates a model is of what it read."""
    with closing(sqlite3.connect(file)) as database:
        models = database.execute("SELECT model_hash, count(*) FROM training_tasks GROUP BY model_hash").fetchall()
        assert models
        assert all(count > 0 for _, count in models)
        drawn = "SELECT count(*) FROM tasks t JOIN labels l ON l.task_id = t.id WHERE t.blind = 1 OR t.stream = 'audit'"
        assert database.execute(drawn).fetchone()[0] > 0  # else nothing is shown by the next line
        taught = (
            "SELECT count(*) FROM training_tasks s JOIN tasks t ON t.id = s.task_id "
            "WHERE t.blind = 1 OR t.stream = 'audit'"
        )
        assert database.execute(taught).fetchone()[0] == 0
        registered = database.execute("SELECT model_hash FROM project_models").fetchall()
        assert {name for (name,) in registered} == {name for name, _ in models}
        # A model may be known by the hash of the project's view of it; every name of it begins with its own.
        rows = (
            "SELECT s.task_id, m.name FROM calibration_scores s JOIN models m ON m.id = s.model_id "
            "JOIN calibration_cells c ON c.id = s.cell_id WHERE s.removed_at_revision IS NULL AND c.exclusion = ''"
        )
        evidence = database.execute(rows).fetchall()
        assert evidence
        read = database.execute(
            "SELECT s.task_id, p.name FROM training_tasks s JOIN project_models p ON p.model_hash = s.model_hash"
        ).fetchall()
        assert read
        assert not set(evidence) & set(read)


def check_that_planted_rows_are_found(file: Path, order: Order) -> None:
    """A drawn label in a training set is found, and so is a row that calibrates the model it taught."""
    blind = "SELECT t.id FROM tasks t JOIN labels l ON l.task_id = t.id WHERE t.blind = 1 LIMIT 1"
    calibrates = (
        "SELECT s.task_id FROM calibration_scores s JOIN models m ON m.id = s.model_id "
        "JOIN calibration_cells c ON c.id = s.cell_id JOIN tasks t ON t.id = s.task_id "
        "WHERE m.name = :name AND t.blind = 0 AND s.removed_at_revision IS NULL AND c.exclusion = '' LIMIT 1"
    )
    with closing(sqlite3.connect(file)) as database:
        first = "SELECT model_hash, name FROM project_models ORDER BY id LIMIT 1"
        model, name = database.execute(first).fetchone()
        planted = [database.execute(blind).fetchone(), database.execute(calibrates, {"name": name}).fetchone()]
    if order is Order.REVIEW:
        planted = planted[:1]  # nothing but drawn labels calibrates then
    for row in planted:
        assert row is not None
        changed = Path(shutil.copy(file, file.with_suffix(".planted")))
        with closing(sqlite3.connect(changed)) as database:
            columns = [column for _, column, *_ in database.execute("PRAGMA table_info(training_tasks)")]
            values = ", ".join("?" if column == "task_id" else column for column in columns)
            database.execute(
                f"INSERT INTO training_tasks ({', '.join(columns)}) SELECT {values} FROM training_tasks "
                "WHERE model_hash = ? LIMIT 1",
                (*row, model),
            )
            database.commit()
        with pytest.raises(AssertionError):
            check_training_sets(changed)


HEAD = (
    "| order | seed | trainings | hand-overs | wrong prelabels accepted | rows (word) | covered | 95 % band | p "
    "| not yet labelled |\n|---|---|---|---|---|---|---|---|---|---|"
)


def show(order: Order, seed: int, one: Outcome) -> str:
    low, high = one.band
    return (
        f"| {order.value} | {seed} | {one.trainings} | {one.handovers} | {one.stamped} | {one.n} ({one.guarantee}) "
        f"| {one.covered / one.total:.4f} of {one.total:,} | {low / one.total:.4f}-{high / one.total:.4f} "
        f"| {one.p:.3f} | {one.left:.4f} |"
    )


def judge(outcomes: list[Outcome]) -> None:
    """Each is inside its own law, as far as chance among all of them allows, and so are all of them together."""
    assert all(one.guarantee == "own" for one in outcomes)
    assert min(one.p for one in outcomes) > 0.01 / len(outcomes)


@pytest.mark.heavy
def test_coverage_after_three_hand_overs_of_a_toy_language(
    migrated: Path, served_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = Size(imported=240, last=80, after=10, step=20, n_min=30, blind=0.4, judged=400)
    texts = untidy_texts(640, seed=9)
    outcomes = []
    with capsys.disabled():
        print(f"\n{HEAD}")
        for order in ORDERS:
            file = shutil.copy(migrated, tmp_path / f"{order.value}.db")
            one = run(
                Path(file), texts, ("Drug", "Symptom"), order=order, seed=1, size=size,
                model=str(served_model), learn_from="nothing",
            )  # fmt: skip
            print(show(order, 1, one))
            assert (one.trainings, one.handovers) == (3, 3)
            assert one.stamped  # its models are wrong now and then, and people follow them
            check_training_sets(Path(file))
            check_that_planted_rows_are_found(Path(file), order)
            outcomes.append(one)
    judge(outcomes)


@pytest.mark.slow
def test_coverage_after_five_hand_overs_on_real_text(
    migrated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Chemicals and diseases in sentences of abstracts: 20 to 640 labels, 1,600 tasks imported."""
    data = require_benchmark_data() / "bc5cdr"
    texts = [text for part in ("train", "devel", "test") for text in _texts(data / f"{part}.tsv.gz")]
    size = Size(imported=1_600, last=640, after=80, step=40, n_min=60, blind=0.3, judged=3_000)
    outcomes = []
    with capsys.disabled():
        print(f"\nBC5CDR, {len(texts):,} sentences\n{HEAD}", flush=True)
        for seed in range(SEEDS):
            for order in ORDERS:
                file = Path(shutil.copy(migrated, tmp_path / f"{order.value}-{seed}.db"))
                one = run(file, texts, ("Chemical", "Disease"), order=order, seed=seed, size=size)
                print(show(order, seed, one), flush=True)
                assert one.trainings >= 6
                check_training_sets(file)
                outcomes.append(one)
    judge(outcomes)


def _texts(path: Path) -> list[LabelledText]:
    return list(read_labelled(path).texts) if path.exists() else []
