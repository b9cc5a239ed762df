"""After the loop: coverage by language and by length, of thresholds that a refit made from a real database.

Labels come in a random order, rows are recorded as ingest records them, thresholds are fitted again and again, and the
last version is judged on tasks nobody labelled. What is promised is coverage per pool (METHODS 5.2): a language or a
length is judged on the tasks whose pool lies within it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from backend.calibration.refit import refit
from backend.domain.records import AnnotationRecord, Draw, SequenceScores
from backend.domain.streams import Order, exclusion_of
from backend.prediction.calibration import calibration_of
from backend.store import Store, open_store
from backend.store.batches import NewTask, ensure_tasks
from backend.store.calibration import record_scores
from backend.store.labels import labels_of, record_annotation
from backend.store.projects import ensure_model, ensure_project
from conformal.thresholds import Thresholds
from tests.support.loop_world import (
    NOW,
    Collection,
    band,
    collection,
    covered_by,
    draws,
    history,
    law_of,
    simulate,
    two_sided,
)

TARGETS = ("0.1", "0.05")


def run_loop(
    store: Store, tasks: Collection, *, labelled: int, refits: int, n_min: int
) -> tuple[Thresholds, np.ndarray]:
    """Label tasks in uniform order through the store, refitting on the way; return the last thresholds and the rest."""
    drawn = draws(len(tasks), salt="loop", order=Order.UNIFORM, blind=1.0)
    order = np.argsort([draw.random_order for draw in drawn])
    with store.write() as session:
        project = ensure_project(session, "1.1")
        model = ensure_model(session, "m", "ab", classes=["X"])
    made = None
    for part in np.array_split(order[:labelled], refits):
        for page in np.array_split(part, max(1, part.size // 500)):
            write_rows(store, project.id, model.id, tasks, drawn, page)
        made = refit(store, project, model=model, alpha="0.05", n_min=n_min)
        assert made.changed
        assert made.version.guarantee == "own"
    assert made is not None
    return calibration_of(made.version).thresholds, order[labelled:]


def write_rows(store: Store, project: int, model: int, tasks: Collection, drawn: list[Draw], index: np.ndarray) -> None:
    known = history(Order.UNIFORM)
    with store.write() as session:
        kept = ensure_tasks(
            session, project, [NewTask(str(task), f"text {task}", draw=drawn[task]) for task in index.tolist()]
        )
        for task, row in zip(index.tolist(), kept, strict=True):
            record_annotation(session, row.id, AnnotationRecord(task, NOW, (), created_at=NOW))
        labels = labels_of(session, [row.id for row in kept])
        for task, row in zip(index.tolist(), kept, strict=True):
            record_scores(
                session,
                project,
                model_id=model,
                task_id=row.id,
                label_revision=labels[row.id].revision,
                stratum=str(tasks.cells[task]),
                evidence="blind",
                scores=SequenceScores(float(tasks.nll[task]), float(tasks.rank[task]), 0.5),
                exclusion=exclusion_of(drawn[task], known, NOW),
            )


def groups(
    thresholds: Thresholds, tasks: Collection, held_out: np.ndarray, part: Callable[[str], str]
) -> Iterator[tuple[str, np.ndarray, int]]:
    """Yield each group with the held-out tasks whose pool lies within it, and how many it has in all."""
    names = np.array([part(cell) for cell in tasks.cells[held_out].tolist()])
    for name in sorted(set(names.tolist())):
        mine = held_out[names == name]
        inside = [
            task
            for task in mine.tolist()
            if {part(cell) for cell in thresholds.pool(str(tasks.cells[task])).pool.cells} == {name}
        ]
        yield name, np.array(inside, dtype=np.int64), mine.size


def check(thresholds: Thresholds, tasks: Collection, held_out: np.ndarray, *, least: int) -> None:
    kinds = {"language": lambda cell: cell.split("/")[0], "length": lambda cell: cell.split("/")[-1]}
    judged = [
        (what, name, alpha, mine, total)
        for what, part in kinds.items()
        for name, mine, total in groups(thresholds, tasks, held_out, part)
        for alpha in TARGETS
        if mine.size >= least
    ]
    print("\n| group | target | tasks judged (of) | covered | 95 % band | p |\n|---|---|---|---|---|---|")
    for what, name, alpha, mine, total in judged:
        law = law_of(thresholds, tasks, mine, alpha)
        covered = int(covered_by(thresholds, tasks, mine, alpha).sum())
        low, high = np.array(band(law, 0.05)) / mine.size
        p = two_sided(law, covered)
        print(
            f"| {what} {name} | {1 - float(alpha):g} | {mine.size:,} ({total:,}) | {covered / mine.size:.4f} "
            f"| {low:.4f}-{high:.4f} | {p:.3f} |"
        )
        assert p > 0.01 / len(judged), (what, name, alpha)
    assert {what for what, *_ in judged} == set(kinds)


def test_languages_and_lengths_are_inside_their_bands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = simulate(9_000, seed=21)
    few = tasks.take(np.flatnonzero(np.isin([cell[:2] for cell in tasks.cells.tolist()], ["de", "en", "es"])))
    with open_store(f"sqlite:///{tmp_path}/loop.db") as store, capsys.disabled():
        thresholds, held_out = run_loop(store, few, labelled=600, refits=2, n_min=45)
        check(thresholds, few, held_out, least=100)


@pytest.mark.slow
def test_the_loop_on_real_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = collection(27_000)
    with open_store(f"sqlite:///{tmp_path}/loop.db") as store, capsys.disabled():
        thresholds, held_out = run_loop(store, tasks, labelled=12_000, refits=6, n_min=100)
        print(f"\n{tasks.source}: 12,000 labelled, 6 refits, {held_out.size:,} held out")
        check(thresholds, tasks, held_out, least=200)
