"""What was drawn for tasks before: a draw is made once and kept, whatever the project's order or shares become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.domain.records import Draw
from backend.store.tables import ServedSet, Task


@dataclass(frozen=True)
class KeptDraw:
    """The draw of a task that is known; None: it was shown before anything was drawn, so it stays undrawn."""

    draw: Draw | None


def load_draws(
    session: Session, project_id: int, tasks: Sequence[tuple[str, bytes]]
) -> dict[tuple[str, bytes], KeptDraw]:
    """Return what was drawn for these tasks, each (task id, text hash); those with nothing drawn yet are missing.

    A task whose text was edited keeps the draw of its id: the people who label it have met it already. A task that
    was shown without a draw (before a project had streams) may not be drawn afterwards (METHODS 8.1).
    """
    if not tasks:
        return {}
    shown = sa.select(ServedSet.id).where(ServedSet.task_id == Task.id, ServedSet.shadow.is_(False)).exists()
    rows = session.execute(
        sa.select(
            Task.external_id,
            Task.text_hash,
            Task.stream,
            Task.random_order,
            Task.selection_probability,
            Task.blind,
            Task.deleted_at,
            sa.case((Task.random_order.is_(None), shown), else_=sa.true()).label("settled"),
        )
        .where(Task.project_id == project_id, Task.external_id.in_(sorted({name for name, _ in tasks})))
        .order_by(Task.id)
    )
    exact: dict[tuple[str, bytes], KeptDraw] = {}
    edited: dict[str, KeptDraw] = {}
    for row in rows:
        if not row.settled:
            continue
        draw = None
        if row.random_order is not None:
            draw = Draw(row.stream, row.random_order, row.selection_probability, bool(row.blind))
        exact[row.external_id, bytes(row.text_hash)] = KeptDraw(draw)
        if row.deleted_at is None:
            edited.setdefault(row.external_id, KeptDraw(draw))
    kept = {}
    for key in tasks:
        earlier = exact.get(key) or edited.get(key[0])
        if earlier is not None:
            kept[key] = earlier
    return kept


def was_shown_undrawn(session: Session, task_id: int) -> bool:
    """Whether a task that has no draw was shown: then it may not be drawn afterwards."""
    shown = sa.select(ServedSet.id).where(ServedSet.task_id == task_id, ServedSet.shadow.is_(False))
    return session.execute(shown.limit(1)).scalar_one_or_none() is not None
