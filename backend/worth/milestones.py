"""What comes next by counting labels alone: promises, figures, decisions and trainings (METHODS 14.6)."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from backend.acceptance.decision import stand
from backend.acceptance.report import default_wish
from backend.calibration.evidence import Evidence, count_evidence, is_clean
from backend.domain.records import Cell, ModelRecord, ProjectRecord
from backend.learning.report import learning_report
from backend.settings import Settings
from backend.store.acceptance import count_blind_labels, list_acceptances
from backend.store.calibration import load_cells
from conformal.estimates import LEAST_LABELS
from conformal.risk.levels import least_tasks

BLANK = "blind labels"
LEARNT = "labels to learn from"


@dataclass(frozen=True)
class Milestone:
    """Something that comes with the number of labels: of which kind, how many it needs and how many there are."""

    name: str
    title: str
    of: str
    has: int
    needs: int

    @property
    def missing(self) -> int:
        """How many labels are still to come."""
        return max(0, self.needs - self.has)


def milestones(
    session: Session,
    project: ProjectRecord,
    model: ModelRecord | None,
    *,
    settings: Settings,
    cells: list[Cell] | None = None,
) -> list[Milestone]:
    """Return what comes next, from counters.

    Args:
        cells: of the labels that may calibrate, where they are at hand.
    """
    if cells is None:
        cells = [] if model is None else load_cells(session, project.id, model_id=model.id)
    counts = count_evidence(cells)
    clean = sum(n for kind, n in counts.items() if is_clean(kind))
    blind = counts.get(Evidence.BLIND, 0)
    found = [Milestone("own", "Thresholds of your own", BLANK, clean, settings.n_min)]
    if settings.risk_rule is not None:
        needs = least_tasks(settings.risk_rule.max_error)
        found.append(Milestone("flags", "A promise about what is not amber", BLANK, clean, needs))
    found.append(Milestone("accuracy", "How good the prelabels are, with an interval", BLANK, blind, LEAST_LABELS))
    wish = default_wish(session, project.id)
    if model is not None:
        labels = count_blind_labels(session, project.id, model_id=model.id)
        standing = stand(list_acceptances(session, project.id), wish, model_id=model.id, labels=labels)
        due = standing.count or standing.next
        found.append(Milestone("acceptance", "The next decision about tasks nobody needs to open", BLANK, labels, due))
    learning = learning_report(session, project, settings=settings)
    if learning["next_at_labels"] is not None:
        found.append(Milestone("training", "The next model", LEARNT, learning["labels"], learning["next_at_labels"]))
    return found
