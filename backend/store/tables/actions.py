"""What people did on the pages."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from backend.store.columns import Base, BigId, UtcDateTime


class Action(Base):
    """One thing that a person asked for, with what came of it: a job's id, a version, an alpha before and after."""

    __tablename__ = "actions"
    __table_args__ = (sa.Index("ix_actions_project", "project_id", "id"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    project_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("projects.id", ondelete="CASCADE"))
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    who: Mapped[str] = mapped_column(sa.String(200))
    action: Mapped[str] = mapped_column(sa.String(20))
    details: Mapped[dict[str, Any]] = mapped_column(sa.JSON)
