"""Training from stored labels: audit and blind ones are left alone, what was used is recorded and never calibrates."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from backend.calibration.score_labels import score_unscored
from backend.cli import main
from backend.domain.records import AnnotationRecord, Draw, TextSpan
from backend.labels.training_sets import read_project
from backend.store import Store, open_store
from backend.store.jobs import list_jobs
from backend.store.labels import record_annotation
from backend.store.projects import ensure_model, ensure_project, ensure_task, find_project
from backend.store.tables import CalibrationCell, CalibrationScore, TrainingTask
from backend.tagger.errors import InvalidTraining
from backend.tagger.folded import restrict
from backend.tagger.loading import load_tagger
from backend.tagger.model_files import Kind, model_kind
from backend.tagger.readers import read_labelled
from backend.tagger.tagger import Tagger
from tests.support.paths import SAMPLE
from tests.support.taggers import reworded

NOON = datetime(2026, 11, 2, 12, tzinfo=UTC)


def fill(store: Store, *, blind: bool | None = None) -> dict[str, list[int]]:
    """The sample as a labelled project: every third task blind, some skipped, bulk copies, deleted."""
    made: dict[str, list[int]] = {"usable": [], "kept": []}
    with store.write() as session:
        project = ensure_project(session, "7.1")
        for place, text in enumerate(read_labelled(SAMPLE).texts):
            hidden = place % 3 == 0 if blind is None else blind
            draw = Draw("audit" if hidden else "uniform", place / 1000, 1.0, blind=hidden)
            task = ensure_task(session, project.id, external_id=str(place), text=text.text, language="en", draw=draw)
            spans = tuple(TextSpan(*span) for span in text.spans)
            skipped, bulk = place == 1, place == 2
            record_annotation(session, task.id, AnnotationRecord(place, NOON, spans, was_cancelled=skipped, bulk=bulk))
            if hidden:
                made["kept"].append(task.id)
            elif not skipped and not bulk:
                made["usable"].append(task.id)
    return made


def test_only_labels_that_calibration_does_not_need_are_read(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path / 's.db'}") as store:
        made = fill(store)
        found = read_project(store, "7")
        assert sorted(found.texts) == made["usable"]
        assert found.left_out["audit or blind: kept for calibration"] == len(made["kept"])
        assert found.left_out["skipped"] == found.left_out["bulk"] == 1
        assert f"{len(made['usable'])} confirmed labels" in found.summary()


def test_a_project_of_blind_labels_alone_trains_nothing(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path / 's.db'}") as store:
        fill(store, blind=True)
        with pytest.raises(InvalidTraining, match="expected confirmed labels to train on"):
            read_project(store, "7")


def test_classes_are_the_labels_of_the_config_and_lost_ones_are_left_out(tmp_path: Path) -> None:
    config = (
        '<View><Labels name="l" toName="t"><Label value="Firm" predicted_values="Company Ltd"/><Label value="O"/>'
        '<Label value="Drug"/></Labels><Text name="t" value="$text"/></View>'
    )
    said = {"1": "Drug", "2": "Gone", "3": "O", "4": "Company Ltd", "5": "Firm"}
    with open_store(f"sqlite:///{tmp_path / 's.db'}") as store:
        with store.write() as session:
            project = ensure_project(session, "7.1", label_config=config)
            for name, label in said.items():
                task = ensure_task(session, project.id, external_id=name, text=f"text {name}")
                spans = (TextSpan(0, 4, label),)
                record_annotation(session, task.id, AnnotationRecord(int(name), NOON, spans))
        found = read_project(store, "7")
        assert [text.spans[0].label for text in found.texts.values()] == ["Drug", "Firm", "Firm"]
        assert found.left_out == {"has a label that the label config no longer has": 2}
        with store.write() as session:  # a config that cannot be read loses nothing
            ensure_project(session, "7.1", label_config="<View")
        assert len(read_project(store, "7").texts) == 4


@dataclass(frozen=True)
class Trained:
    """A database, the tasks in it, a model trained on its project, and what the command said."""

    url: str
    made: dict[str, list[int]]
    out: Path
    said: str


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("trained")
    url, out = f"sqlite:///{folder / 's.db'}", folder / "mine"
    with open_store(url) as store:
        made = fill(store)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SURESPAN_DATABASE_URL", url)
        answer = CliRunner().invoke(main, ["train", "--project", "7", "--out", str(out), "--epochs", "1"])
    assert answer.exit_code == 0, answer.output
    return Trained(url, made, out, answer.output)


@pytest.mark.heavy
def test_the_command_trains_records_and_hands_over(trained: Trained) -> None:
    made = trained.made
    assert f"SURESPAN_MODEL={trained.out}" in trained.said.replace("\n", "")
    tagger = load_tagger(trained.out)
    assert tagger.ancestors == ()
    with open_store(trained.url) as store:
        with store.read() as session:
            rows = session.execute(sa.select(TrainingTask)).scalars().all()
            assert {row.model_hash for row in rows} == {tagger.base_hash}
            assert sorted(row.task_id for row in rows) == made["usable"]
            assert {row.purpose for row in rows} == {"training", "stopping"}
            [job] = list_jobs(session)
            assert (job.kind, job.payload) == ("rescore", {"model": tagger.hash})
        # What a worker does next: rows of trained tasks are there, and are no evidence.
        excluded = exclusions(store, tagger)
        assert {task for task, reason in excluded.items() if reason == "trained"} == set(made["usable"])
        assert set(made["kept"]) <= set(excluded)


def exclusions(store: Store, tagger: Tagger) -> dict[int, str]:
    """Score the project's labels under a model as a worker does; return why each may not calibrate it, by task."""
    with store.write() as session:
        project = find_project(session, "7")
        assert project is not None
        model = ensure_model(session, tagger.name, tagger.hash, classes=tagger.space.classes)
    score_unscored(store, project, model=model, tagger=tagger)
    with store.read() as session:
        scored = session.execute(
            sa.select(CalibrationScore.task_id, CalibrationCell.exclusion)
            .join(CalibrationCell, CalibrationCell.id == CalibrationScore.cell_id)
            .where(CalibrationCell.model_id == model.id)
        ).all()
    return {row.task_id: row.exclusion for row in scored}


@pytest.mark.heavy
def test_what_a_model_learnt_is_no_evidence_about_one_that_begins_with_it(trained: Trained, tmp_path: Path) -> None:
    extra = reworded(tmp_path)  # none of the project's texts
    out = tmp_path / "next"
    arguments = ["--data", extra, "--dev", extra, "--start-from", trained.out, "--out", out, "--epochs", 1]
    answer = CliRunner().invoke(main, ["train", *map(str, arguments)])
    assert answer.exit_code == 0, answer.output
    tagger = load_tagger(out)
    assert tagger.ancestors == (load_tagger(trained.out).base_hash,)
    learnt = [text.text for place, text in enumerate(read_labelled(SAMPLE).texts) if place % 3 and place > 2]
    assert all(tagged.seen for tagged in tagger.potentials(learnt))
    assert not tagger.potentials(["Nobody was ever trained on this."])[0].seen
    with open_store(trained.url) as store:
        # A project's view of a model, over fewer classes, has learnt the same.
        for one in (tagger, restrict(tagger, ["LOC", "PER"])):
            excluded = exclusions(store, one)
            assert {task for task, reason in excluded.items() if reason == "trained"} == set(trained.made["usable"])
            assert set(trained.made["kept"]) <= set(excluded)


def test_an_unknown_project_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SURESPAN_DATABASE_URL", f"sqlite:///{tmp_path / 's.db'}")
    answer = CliRunner().invoke(main, ["train", "--project", "99", "--out", str(tmp_path / "m")])
    assert answer.exit_code == 1
    assert "expected the id of a project" in answer.output


def test_few_labels_are_learnt_by_the_linear_chain_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, out = f"sqlite:///{tmp_path / 's.db'}", tmp_path / "mine"
    with open_store(url) as store:
        made = fill(store)
    monkeypatch.setenv("SURESPAN_DATABASE_URL", url)
    answer = CliRunner().invoke(main, ["train", "--project", "7", "--out", str(out), "--start-from", "nothing"])
    assert answer.exit_code == 0, answer.output
    assert model_kind(out) is Kind.LINEAR
    with open_store(url) as store:
        excluded = exclusions(store, load_tagger(out))
    assert {task for task, reason in excluded.items() if reason == "trained"} == set(made["usable"])
