"""Few own labels: sets are borrowed from the starter where it can serve, and say so (METHODS 8.2)."""

from __future__ import annotations

import numpy as np
import pytest

from backend.domain.guarantee import Guarantee
from backend.prediction.calibration import Calibration
from backend.prediction.predictor import Predictor
from backend.prediction.promise import describe_promise
from backend.prediction.starter import starter_calibration
from backend.tagger.loading import load_tagger
from backend.tagger.model_files import model_directory
from backend.tagger.tagger import Tagger
from conformal.rows import EntityRows, TaskRows
from conformal.thresholds import calibrate

TEXT = "Angela Merkel besuchte im Sommer die Universität in Lissabon."


@pytest.fixture(scope="module")
def tagger() -> Tagger:
    return load_tagger()


@pytest.fixture(scope="module")
def starter(tagger: Tagger) -> Calibration:
    return starter_calibration(tagger, model_directory("bundled"))


def own(tagger: Tagger, rows: int, *, cell: str = "de/1-10") -> Calibration:
    tasks = TaskRows.of([cell] * rows, -np.linspace(0.1, 2.0, rows))
    entities = EntityRows.of(np.arange(rows), ["PER"] * rows, probability=np.linspace(0.3, 1.0, rows))
    thresholds = calibrate(tasks, entities, classes=tagger.space.classes, n_min=50)
    return Calibration(thresholds, Guarantee.OWN, 7)


def test_too_few_labels_borrow_and_do_not_open(tagger: Tagger, starter: Calibration) -> None:
    few = own(tagger, 10)
    alone = Predictor(tagger, few).predict([TEXT])[0]
    assert (alone.guarantee, alone.sets.open) == (Guarantee.NONE, True)
    helped = Predictor(tagger, Calibration(few.thresholds, few.guarantee, few.version, starter)).predict([TEXT])[0]
    borrowed = Predictor(tagger, starter).predict([TEXT])[0]
    assert helped.guarantee is Guarantee.BORROWED
    assert not helped.sets.open
    assert helped.sets.set_size == borrowed.sets.set_size
    assert helped.sets.spans == borrowed.sets.spans
    assert helped.threshold_version == 7  # the version serves, with the starter where it has too little
    assert "borrowed" in describe_promise(helped)


def test_enough_labels_are_ones_own_and_rare_classes_still_borrow(tagger: Tagger, starter: Calibration) -> None:
    made = own(tagger, 80)
    found = Predictor(tagger, Calibration(made.thresholds, made.guarantee, 7, starter)).predict([TEXT])[0]
    assert found.guarantee is Guarantee.OWN
    assert found.sets.n == 80
    assert not found.sets.borrowed
    assert "PER" not in found.sets.borrowed_labels
    assert set(found.sets.borrowed_labels) == {"LOC", "ORG", "MISC", "O"}
    assert found.sets.uncalibrated == ()
    without = Predictor(tagger, made).predict([TEXT])[0]
    assert set(without.sets.uncalibrated) == {"LOC", "ORG", "MISC", "O"}


def test_other_strata_of_a_version_with_enough_elsewhere_borrow(tagger: Tagger, starter: Calibration) -> None:
    made = own(tagger, 80, cell="fr/41+")
    found = Predictor(tagger, Calibration(made.thresholds, made.guarantee, 7, starter)).predict([TEXT])[0]
    assert found.guarantee is Guarantee.BORROWED


def test_thresholds_over_other_classes_are_never_borrowed(tagger: Tagger) -> None:
    other = calibrate(TaskRows.of(["de/1-10"] * 80, -np.linspace(0.1, 2.0, 80)), classes=["DAY"], n_min=50)
    few = own(tagger, 10)
    fallback = Calibration(other, Guarantee.BORROWED, 0)
    assert Calibration(few.thresholds, few.guarantee, 7, fallback).guarantee_for("de/1-10") is Guarantee.NONE
