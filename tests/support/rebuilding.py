"""Threshold versions made again from the rows that the table says counted at their own revision."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.calibration.evidence import row_weights
from backend.calibration.refit import library_rows
from backend.domain.records import VersionRecord
from backend.prediction.calibration import version_method
from backend.store import Store
from backend.store.bulk import load_entities, load_errors, load_scores
from backend.store.calibration import load_cells
from backend.store.tables import Model, Threshold, ThresholdVersion
from backend.store.thresholds import load_version
from conformal.labels import OUTSIDE
from conformal.risk import ErrorRows, fit_levels
from conformal.strata import EMPTY, SEEN
from conformal.thresholds import calibrate


def check_versions(store: Store) -> int:
    """Rebuild every version from the table; returns how many there are.

    Nothing but the row of the version is used: its revision, its kinds of evidence, its method and its n_min.
    """
    with store.read() as session:
        numbers = session.execute(sa.select(ThresholdVersion.id).order_by(ThresholdVersion.id)).scalars().all()
        for number in numbers:
            version = load_version(session, number)
            assert version is not None
            classes = tuple(session.get_one(Model, version.model_id).classes)
            kinds = [] if version.evidence == "none" else version.evidence.split("+")
            at = version.input_revision
            cells = load_cells(session, version.project_id, model_id=version.model_id, evidence=kinds)
            held = load_scores(session, cells, at_revision=at)
            counted = [cell for i, cell in enumerate(cells) if held.offsets[i] < held.offsets[i + 1]]
            scores = load_scores(session, counted, at_revision=at)
            entities = load_entities(session, counted, at_revision=at, labels=(*classes, OUTSIDE))
            tasks, spans = library_rows(scores, entities)
            fitted = calibrate(
                tasks,
                spans,
                classes=classes,
                method=version_method(version),
                n_min=version.details["n_min"],
                allow_empty=True,
            )
            row = session.get_one(ThresholdVersion, number)
            assert row.n == len(tasks) == len(scores.nll), f"version {number} counts other rows than the table"
            pools = sa.select(Threshold.pool, Threshold.n).where(
                Threshold.version_id == number, Threshold.kind == "pool"
            )
            stored = {each.pool: each.n for each in session.execute(pools)}
            assert stored == {fitted.pool(cell).pool.name: fitted.pool(cell).pool.n for cell in fitted.cells}
            assert fitted.to_bytes() == version.content, f"version {number} cannot be rebuilt"
            levels = version.details.get("risk")
            if levels is not None:
                assert _levels(session, version, levels) == levels, f"version {number} flags by other errors"
    return len(numbers)


def _levels(session: Session, version: VersionRecord, rule: dict[str, Any]) -> dict[str, Any]:
    """Fit the levels of flags again, on the errors that counted then: those of blind labels and of files."""
    cells = load_cells(session, version.project_id, model_id=version.model_id, evidence=["blind", "file"])
    table = load_errors(
        session, [cell for cell in cells if cell.stratum not in (EMPTY, SEEN)], at_revision=version.input_revision
    )
    weights = row_weights(table.weight)
    rows = ErrorRows(
        table.true_spans,
        table.best_spans,
        None if (weights == 1.0).all() else weights,
        table.errors_of,
        table.levels,
        ~table.missing,
    )
    languages = [table.strata[code].split("/")[0] for code in table.codes.tolist()]
    options = {"max_error": rule["max_error"], "sure": rule["sure"], "n_min": rule["n_min"]}
    return fit_levels(rows, languages, **options).to_dict()
