"""What a project's prelabels are worth, for programs, pages and files: the kept record, and what comes next."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from sqlalchemy.orm import Session

from backend.domain.records import Cell, ModelRecord, ProjectRecord
from backend.settings import Settings
from backend.store.state import WORTH, get_state
from backend.worth.milestones import milestones

PARTS = ("accuracy", "saving", "edits", "agreement", "left")


def kept_figures(session: Session, project: ProjectRecord, model: ModelRecord | None) -> dict[str, Any]:
    """Return the figures that were measured last; nothing where none were, or those are of another model."""
    known = get_state(session, project.id, WORTH) or {}
    return known if model is not None and known.get("model") == model.id else {}


def worth_report(
    session: Session,
    project: ProjectRecord,
    model: ModelRecord | None,
    *,
    settings: Settings,
    figures: dict[str, Any] | None = None,
    cells: list[Cell] | None = None,
) -> dict[str, Any]:
    """Return the figures with when they were measured, and what comes with how many more labels.

    Args:
        figures: those that are at hand; else the kept ones.
    """
    found = kept_figures(session, project, model) if figures is None else figures
    steps = milestones(session, project, model, settings=settings, cells=cells)
    if found.get("accuracy"):
        # Labels from before the model came speak for its accuracy only where it was asked about their texts.
        used = int(found["accuracy"][0]["labels"])
        steps = [replace(each, has=min(each.has, used)) if each.name == "accuracy" else each for each in steps]
    return {
        "project": project.uid,
        "measured_at": found.get("at"),
        **{name: found.get(name) for name in PARTS},
        "milestones": [asdict(each) | {"missing": each.missing} for each in steps],
    }
