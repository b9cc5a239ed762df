"""Models of projects, which of them serves, and the files they are loaded from (METHODS 13)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from backend.store.columns import Base, BigId, ExactText, UtcDateTime

_SERVING = sa.text("state = 'serving'")


class ProjectModel(Base):
    """A model that was trained for a project. The database allows one of a project to serve.

    `base` is what its training began with: `bundled`, `nothing`, or the hash of another model. `labels_until` is the
    moment up to which labels were read for it; `why` says what led to the state it is in.
    """

    __tablename__ = "project_models"
    __table_args__ = (
        sa.UniqueConstraint("project_id", "model_hash"),
        sa.CheckConstraint("state IN ('candidate', 'serving', 'retired')", name="state"),
        sa.Index(
            "uq_project_models_serving", "project_id", unique=True, sqlite_where=_SERVING, postgresql_where=_SERVING
        ),
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    project_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("projects.id", ondelete="CASCADE"))
    model_hash: Mapped[str] = mapped_column(sa.String(64), index=True)
    name: Mapped[str] = mapped_column(sa.String(300))
    classes: Mapped[list[str]] = mapped_column(sa.JSON)
    base: Mapped[str] = mapped_column(sa.String(64))
    labels: Mapped[int]
    labels_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    recipe: Mapped[dict[str, Any]] = mapped_column(sa.JSON, default=dict)
    figures: Mapped[dict[str, Any]] = mapped_column(sa.JSON, default=dict)
    state: Mapped[str] = mapped_column(sa.String(10))
    asked_by: Mapped[str] = mapped_column(sa.String(200), default="")
    why: Mapped[str] = mapped_column(sa.String(300), default="")
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    promoted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    retired_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class ModelFile(Base):
    """The file of a model, by the model's hash: in `model_chunks`, or at `path` where it is too large for that."""

    __tablename__ = "model_files"

    model_hash: Mapped[str] = mapped_column(sa.String(64), primary_key=True)
    size: Mapped[int] = mapped_column(sa.BigInteger)
    sha256: Mapped[str] = mapped_column(sa.String(64))
    path: Mapped[str | None] = mapped_column(ExactText)
    stored_at: Mapped[datetime] = mapped_column(UtcDateTime)


class ModelChunk(Base):
    """A piece of a file: no statement carries a whole model."""

    __tablename__ = "model_chunks"

    model_hash: Mapped[str] = mapped_column(
        sa.String(64), sa.ForeignKey("model_files.model_hash", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    content: Mapped[bytes] = mapped_column(sa.LargeBinary)
