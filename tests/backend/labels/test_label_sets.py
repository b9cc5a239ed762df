"""The labels of a label config over time: what is noted of them, and how a page says it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from backend.labels.label_sets import NotedLabel, note_labels, noted_labels
from backend.store import open_store
from backend.store.projects import ensure_project

NOON = datetime(2026, 11, 2, 12, tzinfo=UTC)
LATER, LATEST = NOON + timedelta(hours=1), NOON + timedelta(hours=2)


def test_labels_come_go_and_come_back(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path / 's.db'}") as store, store.write() as session:
        number = ensure_project(session, "7.1").id
        assert noted_labels(session, number) == []
        note_labels(session, number, ["Drug", "Symptom"], at=NOON)
        first = [NotedLabel("Drug", None, None), NotedLabel("Symptom", None, None)]
        assert noted_labels(session, number) == first, "nobody knows since when"
        note_labels(session, number, ["Drug", "Symptom"], at=LATER)
        assert noted_labels(session, number) == first
        note_labels(session, number, ["Drug", "Dose"], at=LATER)
        note_labels(session, number, ["Drug", "Dose"], at=LATEST)
        drug, dose, symptom = noted_labels(session, number)
        assert drug == first[0]
        assert (dose.since, dose.gone) == (LATER, None)
        assert (symptom.name, symptom.gone) == ("Symptom", LATER)
        note_labels(session, number, ["Symptom", "Drug"], at=LATEST)
        assert noted_labels(session, number) == [
            NotedLabel("Symptom", LATEST, None),
            first[0],
            NotedLabel("Dose", LATER, LATEST),
        ]


def test_what_is_remembered_of_labels_that_went_is_bounded(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path / 's.db'}") as store, store.write() as session:
        number = ensure_project(session, "7.1").id
        for step in range(130):
            note_labels(session, number, [f"label {step}"], at=NOON + timedelta(minutes=step))
        noted = noted_labels(session, number)
        assert len(noted) == 101
        assert noted[0] == NotedLabel("label 129", NOON + timedelta(minutes=129), None)
        assert noted[-1].name == "label 128"
