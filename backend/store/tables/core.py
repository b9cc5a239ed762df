"""Projects, tasks, models."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from backend.store.columns import Base, BigId, ExactText, UtcDateTime


class Project(Base):
    """A Label Studio project, keyed on its whole uid (`<id>.<created timestamp>`), or `local`.

    Servers reuse project ids; the uid does not repeat. `key` is the part before the dot, which is all that
    webhooks carry.
    """

    __tablename__ = "projects"

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    uid: Mapped[str] = mapped_column(sa.String(100), unique=True)
    key: Mapped[str] = mapped_column(sa.String(100), index=True)
    title: Mapped[str] = mapped_column(ExactText, default="")
    label_config: Mapped[str | None] = mapped_column(ExactText)
    alpha: Mapped[str | None] = mapped_column(sa.String(20))
    # The lead's word that the collection is in random order: tasks given out in turn are then given out at random.
    shuffled: Mapped[bool] = mapped_column(default=False, server_default=sa.false())
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Model(Base):
    """A tagger, identified by name and content hash."""

    __tablename__ = "models"
    __table_args__ = (sa.UniqueConstraint("name", "hash"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    name: Mapped[str] = mapped_column(sa.String(300))
    hash: Mapped[str] = mapped_column(sa.String(64))
    classes: Mapped[list[str]] = mapped_column(sa.JSON)
    details: Mapped[dict[str, Any]] = mapped_column(sa.JSON, default=dict)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Task(Base):
    """A text to label, keyed on (project, task id, text hash): a reused task id is another task."""

    __tablename__ = "tasks"
    __table_args__ = (
        sa.UniqueConstraint("project_id", "external_id", "text_hash"),
        sa.Index(
            "ix_tasks_text_age",
            "created_at",
            sqlite_where=sa.text("text IS NOT NULL"),
            postgresql_where=sa.text("text IS NOT NULL"),
        ),
        sa.Index("ix_tasks_order", "project_id", "random_order"),
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    project_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("projects.id", ondelete="CASCADE"))
    external_id: Mapped[str] = mapped_column(sa.String(200))
    text_hash: Mapped[bytes] = mapped_column(sa.LargeBinary(32))
    text: Mapped[str | None] = mapped_column(ExactText)
    text_removed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    language: Mapped[str | None] = mapped_column(sa.String(20))
    length: Mapped[int | None]
    # The draw of METHODS 8.1, written once, before anyone sees the task.
    stream: Mapped[str | None] = mapped_column(sa.String(20))
    random_order: Mapped[float | None] = mapped_column(sa.Double)
    selection_probability: Mapped[float | None] = mapped_column(sa.Double)
    blind: Mapped[bool | None]
    external_created_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    deleted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class TaskDeletion(Base):
    """When a task id was last deleted; what was made before that moment belongs to the deleted task."""

    __tablename__ = "task_deletions"

    project_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("projects.id", ondelete="CASCADE"), primary_key=True)
    external_id: Mapped[str] = mapped_column(sa.String(200), primary_key=True)
    at: Mapped[datetime] = mapped_column(UtcDateTime)
