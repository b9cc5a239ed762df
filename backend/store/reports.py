"""Questions that pages and metrics ask of the whole database; nothing here writes."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import Session

from backend.store.tables import ThresholdVersion


def count_versions(session: Session) -> int:
    """Return how many threshold versions there are."""
    return int(session.execute(sa.select(sa.func.count()).select_from(ThresholdVersion)).scalar_one())
