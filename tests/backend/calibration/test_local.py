"""Labelled files to own thresholds, without Label Studio: load, score, refit, predict, on a real database."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from backend.calibration.evidence import Evidence, choose_evidence, worth
from backend.calibration.label_worth import evidence_of
from backend.calibration.local import load_file, local_rows, refit_local, stored_calibration
from backend.calibration.refit import refit
from backend.calibration.score_labels import score_unscored
from backend.cli import main
from backend.domain.guarantee import Guarantee
from backend.domain.records import AnnotationRecord, ModelRecord, ProjectRecord, TextSpan
from backend.prediction.calibration import calibration_of
from backend.prediction.make_starter import rows_of
from backend.prediction.scoring import score_labelled
from backend.settings import load_settings
from backend.store import Store, open_store
from backend.store.calibration import load_cells, recount_cells
from backend.store.labels import current_label, record_annotation
from backend.store.projects import ensure_task, find_task
from backend.store.thresholds import active_version, list_versions
from backend.tagger.configured import load_configured
from backend.tagger.loading import load_tagger
from backend.tagger.network_tagger import NetworkTagger
from backend.tagger.readers import read_labelled
from conformal.thresholds import calibrate
from tests.support.paths import SAMPLE


@pytest.fixture(scope="module")
def tagger(tiny_model: Path) -> NetworkTagger:
    return load_tagger(tiny_model)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    with open_store(f"sqlite:///{tmp_path}/surespan.db") as opened:
        yield opened


@pytest.fixture
def local(store: Store, tagger: NetworkTagger) -> tuple[ProjectRecord, ModelRecord]:
    return local_rows(store, tagger)


def test_stored_rows_give_the_thresholds_of_the_file(
    store: Store, tagger: NetworkTagger, local: tuple[ProjectRecord, ModelRecord]
) -> None:
    project, model = local
    loaded = load_file(store, project, SAMPLE)
    done = score_unscored(store, project, model=model, tagger=tagger)
    assert done.scored == loaded.texts == len(read_labelled(SAMPLE).texts)
    made = refit(store, project, model=model, alpha="0.2", n_min=20)
    # The way through the database changes no score: the thresholds are those of the rows themselves, byte for byte.
    tasks, entities = rows_of(list(score_labelled(tagger, read_labelled(SAMPLE).texts)))
    direct = calibrate(tasks, entities, classes=tagger.space.classes, n_min=20)
    stored = calibration_of(made.version).thresholds
    assert stored.cells.keys() == direct.cells.keys()
    for cell, scores in direct.cells.items():
        np.testing.assert_allclose(stored.cells[cell], scores, rtol=1e-5)  # pages differ from chunks: last float bits
    assert {label: pool.tasks for label, pool in stored.labels.items()} == {
        label: pool.tasks for label, pool in direct.labels.items()
    }
    assert made.version.guarantee == Guarantee.OWN
    with store.read() as session:
        counted = {
            cell.id: (cell.n, cell.n_infinite, cell.tasks)
            for cell in load_cells(session, project.id, model_id=model.id)
        }
        assert recount_cells(session, project.id, model_id=model.id) == counted


def test_loading_again_changes_nothing(
    store: Store, tagger: NetworkTagger, local: tuple[ProjectRecord, ModelRecord], tmp_path: Path
) -> None:
    project, model = local
    load_file(store, project, SAMPLE)
    score_unscored(store, project, model=model, tagger=tagger)
    first = refit(store, project, model=model, alpha="0.2", n_min=20)
    copy = tmp_path / "other-name.conll"
    copy.write_bytes(SAMPLE.read_bytes())
    load_file(store, project, copy)
    assert score_unscored(store, project, model=model, tagger=tagger).scored == 0
    again = refit(store, project, model=model, alpha="0.2", n_min=20)
    assert not again.changed
    assert again.version.id == first.version.id
    with store.read() as session:
        assert len(list_versions(session, project.id, model_id=model.id)) == 1


def test_equal_texts_stay_separate_rows(
    store: Store, tagger: NetworkTagger, local: tuple[ProjectRecord, ModelRecord], tmp_path: Path
) -> None:
    project, model = local
    twice = tmp_path / "twice.conll"
    twice.write_text("Rom\tB-LOC\n\nRom\tB-LOC\n\n", encoding="utf-8")
    assert load_file(store, project, twice).texts == 2
    assert score_unscored(store, project, model=model, tagger=tagger).scored == 2


def test_an_inexpressible_label_counts_as_a_miss(
    store: Store, tagger: NetworkTagger, local: tuple[ProjectRecord, ModelRecord], tmp_path: Path
) -> None:
    project, model = local
    # A span that ends inside a word, and a class that the model does not have.
    export = [
        {"data": {"text": "Berlin ist schön"}, "annotations": [_annotation(0, 3, "LOC")]},
        {"data": {"text": "Montag in Rom"}, "annotations": [_annotation(0, 6, "DAY")]},
    ]
    path = tmp_path / "export.json"
    path.write_text(json.dumps(export), encoding="utf-8")
    load_file(store, project, path)
    done = score_unscored(store, project, model=model, tagger=tagger)
    assert (done.scored, done.inexpressible) == (2, 2)
    with store.read() as session:
        cells = load_cells(session, project.id, model_id=model.id)
        assert sum(cell.n_infinite for cell in cells) == 2
    made = refit(store, project, model=model, alpha="0.5", n_min=1)
    assert all(math.isinf(change.tau_after) for change in made.changes if change.kind == "pool")


def _annotation(start: int, end: int, label: str) -> dict:
    value = {"start": start, "end": end, "labels": [label]}
    return {"result": [{"from_name": "label", "to_name": "text", "type": "labels", "value": value}]}


def test_a_label_outside_the_draw_is_kept_but_no_evidence(
    store: Store, tagger: NetworkTagger, local: tuple[ProjectRecord, ModelRecord]
) -> None:
    project, model = local
    with store.write() as session:
        task = ensure_task(session, project.id, external_id="7", text="Rom ist schön")
        assert evidence_of(task) is Evidence.ASSISTED
        when = datetime(2026, 1, 1, tzinfo=UTC)
        record_annotation(session, task.id, AnnotationRecord(1, when, (TextSpan(0, 3, "LOC"),)))
    assert score_unscored(store, project, model=model, tagger=tagger).scored == 1
    with store.read() as session:
        assert load_cells(session, project.id, model_id=model.id) == []
        [cell] = load_cells(session, project.id, model_id=model.id, excluded=True)
        assert (cell.exclusion, cell.n) == ("undrawn", 1)
        found = find_task(session, project.id, external_id="7")
        assert found is not None
        assert current_label(session, found.id) is not None
    assert refit(store, project, model=model, alpha="0.1").version.guarantee == Guarantee.NONE


def test_evidence_is_chosen_by_counts_alone() -> None:
    assert choose_evidence({"assisted": 500}, n_min=100) == {"assisted"}
    assert choose_evidence({"assisted": 500, "blind": 99}, n_min=100) == {"assisted", "blind"}
    assert choose_evidence({"assisted": 500, "blind": 100}, n_min=100) == {"blind"}
    assert worth({"blind", "file"}, rows=5) is Guarantee.OWN
    assert worth({"blind", "assisted"}, rows=5) is Guarantee.ASSISTED
    assert worth((), rows=0) is Guarantee.NONE


def test_the_starter_behind_stored_thresholds_has_their_whole_method(
    tiny_model: Path,
    tmp_path: Path,
) -> None:
    database = f"sqlite:///{tmp_path}/s.db"
    settings = load_settings(model=str(tiny_model), n_min=20, method="nc1/nc2", database_url=database)
    tagger = load_configured(settings)
    assert stored_calibration(settings, tagger) is None
    with open_store(settings.database_url) as store:
        load_file(store, local_rows(store, tagger)[0], SAMPLE)
        refit_local(store, tagger, settings, reason="test")
    stored = stored_calibration(settings.model_copy(update={"method": "nc1"}), tagger)
    assert stored is not None
    assert stored.fallback is not None
    assert stored.thresholds.entity_method.name == "nc2"
    assert stored.fallback.thresholds.entity_method == stored.thresholds.entity_method


def test_the_commands_make_the_guarantee_ones_own(tiny_model: Path, tmp_path: Path) -> None:
    environment = {
        "SURESPAN_MODEL": str(tiny_model),
        "SURESPAN_N_MIN": "20",
        "SURESPAN_ALPHA": "0.2",
        "SURESPAN_DATABASE_URL": f"sqlite:///{tmp_path}/s.db",
    }

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(main, arguments, env=environment, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    before = json.loads(run("predict", "Rom", "--json"))
    assert before["guarantee"] in {"borrowed", "none"}
    assert not (tmp_path / "s.db").exists()  # looking makes no database
    made = json.loads(run("calibrate", str(SAMPLE), "--json"))
    assert made["guarantee"] == "own"
    assert made["previous_version"] is None
    after = json.loads(run("predict", "Rom", "--json"))
    assert after["guarantee"] == "own" or after["n"] < 20
    assert after["threshold_version"] == made["threshold_version"]
    assert after["model_version"].endswith(f"+cal.{made['threshold_version']}")
    assert "Nothing changed" in run("recalibrate")
    environment["SURESPAN_ALPHA"] = "0.3"
    assert "Threshold version 2 (own, alpha 0.3)" in run("recalibrate")
    with open_store(environment["SURESPAN_DATABASE_URL"]) as store, store.read() as session:
        active = active_version(session, 1, model_id=1)
        assert active is not None
        assert active.alpha == "0.3"
