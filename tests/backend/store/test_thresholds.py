"""Versions of thresholds: immutable, one active at a time, activations kept."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa

from backend.domain.records import ThresholdRow, VersionRecord
from backend.errors import NotFound, StoreConflict
from backend.store import Store
from backend.store.projects import ensure_model, ensure_project
from backend.store.thresholds import (
    activate_version,
    active_version,
    active_version_ids,
    list_activations,
    list_versions,
    load_thresholds,
    load_version,
    write_version,
)

WHEN = datetime(2026, 1, 1, tzinfo=UTC)


def prepare(store: Store) -> tuple[int, int]:
    """A project and a model."""
    with store.write() as session:
        project = ensure_project(session, "1.17").id
        return project, ensure_model(session, "m", "ab" * 32, classes=["PER", "LOC"]).id


class TestVersions:
    def write(
        self, store: Store, project: int, model: int, *, content: bytes = b"x", activate: bool = True
    ) -> VersionRecord:
        with store.write() as session:
            return write_version(
                session,
                project,
                model_id=model,
                alpha="0.05",
                method="nc1",
                evidence="blind",
                guarantee="own",
                input_revision=3,
                content=content,
                thresholds=[ThresholdRow("pool", "en", 9, 1, math.inf), ThresholdRow("class", "PER", 7, 0, 0.25)],
                details={"why": "test"},
                activate=activate,
            )

    def test_written_active_and_rolled_back(self, store: Store) -> None:
        project, model = prepare(store)
        with store.read() as session:
            assert active_version(session, project, model_id=model) is None
        first, second = self.write(store, project, model), self.write(store, project, model, content=b"\x00\xff" * 1000)
        with store.read() as session:
            assert active_version(session, project, model_id=model) == second
            assert active_version_ids(session) == {(project, model): second.id}
            assert load_version(session, first.id) == first
            assert load_version(session, 10**6) is None
            assert [row.tau for row in load_thresholds(session, first.id)] == [0.25, math.inf]
            assert (second.n, second.content, second.details) == (9, b"\x00\xff" * 1000, {"why": "test"})
        with store.write() as session:
            back = activate_version(session, first.id, reason="roll back")
            assert (back.version_id, back.previous_id) == (first.id, second.id)
            with pytest.raises(NotFound):
                activate_version(session, 10**6, reason="no")
        third = self.write(store, project, model, activate=False)
        with store.read() as session:
            assert active_version(session, project, model_id=model) == first
            assert [each.id for each in list_versions(session, project, model_id=model)] == [
                third.id,
                second.id,
                first.id,
            ]
            history = list_activations(session, project, model_id=model)
        assert [(each.version_id, each.reason) for each in history] == [
            (first.id, "roll back"),
            (second.id, "refit"),
            (first.id, "refit"),
        ]

    def test_ids_are_global_and_never_reused(self, store: Store) -> None:
        project, model = prepare(store)
        with store.write() as session:
            elsewhere = ensure_project(session, "2.17").id
        first, second = self.write(store, project, model).id, self.write(store, elsewhere, model).id
        assert second > first
        with store.write() as session:
            session.execute(sa.text(f"DELETE FROM projects WHERE id = {elsewhere}"))
            assert load_version(session, second) is None
        assert self.write(store, project, model).id > second

    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE threshold_versions SET alpha = '0.5'",
            "UPDATE thresholds SET tau = 0",
            "UPDATE activations SET reason = 'x'",
        ],
    )
    def test_nothing_about_a_version_can_change(self, store: Store, statement: str) -> None:
        project, model = prepare(store)
        self.write(store, project, model)
        with pytest.raises(StoreConflict, match="never changed"), store.write() as session:
            session.execute(sa.text(statement))

    def test_the_database_refuses_a_second_active_version_and_a_foreign_one(self, store: Store) -> None:
        project, model = prepare(store)
        first = self.write(store, project, model)
        self.write(store, project, model)
        copy = "INSERT INTO active_versions SELECT project_id, model_id, {0}, activated_at FROM active_versions"
        with pytest.raises(StoreConflict), store.write() as session:
            session.execute(sa.text(copy.format(first.id)))
        with store.write() as session:
            other = ensure_project(session, "2.17").id
        with pytest.raises(StoreConflict), store.write() as session:
            session.execute(sa.text("UPDATE active_versions SET project_id = :other"), {"other": other})

    def test_a_failed_refit_leaves_nothing(self, store: Store) -> None:
        project, model = prepare(store)
        kept = self.write(store, project, model)
        twice = [ThresholdRow("pool", "en", 1, 0, 1.0)] * 2
        with pytest.raises(StoreConflict), store.write() as session:
            write_version(
                session,
                project,
                model_id=model,
                alpha="0.05",
                method="nc1",
                evidence="blind",
                guarantee="own",
                input_revision=3,
                content=b"y",
                thresholds=twice,
            )
        with store.read() as session:
            assert active_version(session, project, model_id=model) == kept
            assert list_versions(session, project, model_id=model) == [kept]

    def test_damaged_content_is_refused(self, store: Store) -> None:
        project, model = prepare(store)
        self.write(store, project, model)
        drop = "DROP TRIGGER threshold_versions_immutable" + ("" if store.is_sqlite else " ON threshold_versions")
        with store.write() as session:
            session.execute(sa.text(drop))
            session.execute(sa.text("UPDATE threshold_versions SET content = :bytes"), {"bytes": b"other"})
        with pytest.raises(StoreConflict, match="the database is damaged"), store.read() as session:
            active_version(session, project, model_id=model)
