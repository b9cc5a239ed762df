"""Annotations as last heard, the one label that counts per task and policy, and what happened."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from backend.store.columns import Base, BigId, ExactText, UtcDateTime

_SKIPPED = sa.text("exclusion = 'skipped'")
_DISAGREEING = sa.text("votes < voters AND exclusion IS NULL")


class Annotation(Base):
    """The newest state of one annotation id, by the server's own `updated_at`, not by order of arrival.

    The annotation counts while `updated_at > deleted_at` (or `deleted_at` is null). A deletion that arrives
    before the annotation leaves a row without a task.
    """

    __tablename__ = "annotations"
    __table_args__ = (sa.UniqueConstraint("project_id", "annotation_id"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    project_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("projects.id", ondelete="CASCADE"))
    annotation_id: Mapped[int] = mapped_column(sa.BigInteger)
    task_id: Mapped[int | None] = mapped_column(BigId, sa.ForeignKey("tasks.id", ondelete="CASCADE"), index=True)
    updated_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    deleted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    content_hash: Mapped[str | None] = mapped_column(sa.String(64))
    spans: Mapped[list[Any] | None] = mapped_column(sa.JSON(none_as_null=True))
    was_cancelled: Mapped[bool] = mapped_column(default=False)
    ground_truth: Mapped[bool] = mapped_column(default=False)
    bulk: Mapped[bool] = mapped_column(default=False)
    # Made by `surespan accept`: nobody's word, also after somebody edited it.
    accepted: Mapped[bool] = mapped_column(default=False, server_default=sa.false())
    created_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    unique_id: Mapped[str | None] = mapped_column(sa.String(100))
    parent_prediction: Mapped[int | None] = mapped_column(sa.BigInteger)
    parent_annotation: Mapped[int | None] = mapped_column(sa.BigInteger)
    origins: Mapped[dict[str, int]] = mapped_column(sa.JSON, default=dict)
    lead_time: Mapped[float | None] = mapped_column(sa.Double)
    completed_by: Mapped[int | None] = mapped_column(sa.BigInteger)


class Label(Base):
    """The label of a task under a policy, derived from its annotations (METHODS 8.4).

    `revision` grows whenever what counts changes; calibration rows name the revision they were scored from.
    """

    __tablename__ = "labels"
    __table_args__ = (
        sa.UniqueConstraint("task_id", "policy"),
        sa.Index("ix_labels_project", "project_id", "policy", "id"),
        sa.Index("ix_labels_skipped", "project_id", "policy", "id", sqlite_where=_SKIPPED, postgresql_where=_SKIPPED),
        sa.Index(
            "ix_labels_disagreeing",
            *("project_id", "policy", "id"),
            sqlite_where=_DISAGREEING,
            postgresql_where=_DISAGREEING,
        ),
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    project_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("projects.id", ondelete="CASCADE"))
    task_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("tasks.id", ondelete="CASCADE"))
    policy: Mapped[str] = mapped_column(sa.String(30))
    revision: Mapped[int] = mapped_column(default=1)
    annotation_row: Mapped[int | None] = mapped_column(
        BigId, sa.ForeignKey("annotations.id", ondelete="SET NULL"), index=True
    )
    content_hash: Mapped[str | None] = mapped_column(sa.String(64))
    spans: Mapped[list[Any] | None] = mapped_column(sa.JSON(none_as_null=True))
    exclusion: Mapped[str | None] = mapped_column(sa.String(30))
    votes: Mapped[int] = mapped_column(default=0)
    voters: Mapped[int] = mapped_column(default=0)
    changed_at: Mapped[datetime] = mapped_column(UtcDateTime)


class LabelHistory(Base):
    """Everything that was ever said about an annotation; rows are added, never changed (a trigger refuses)."""

    __tablename__ = "label_history"
    __table_args__ = (
        # A repeated delivery says nothing new, so it adds nothing.
        sa.UniqueConstraint("project_id", "annotation_id", "kind", "at", "content_hash", name="uq_label_history_fact"),
        sa.Index("ix_label_history_task", "task_id", "at"),
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    project_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("projects.id", ondelete="CASCADE"))
    annotation_id: Mapped[int] = mapped_column(sa.BigInteger)
    task_id: Mapped[int | None] = mapped_column(BigId, sa.ForeignKey("tasks.id", ondelete="CASCADE"))
    kind: Mapped[str] = mapped_column(sa.String(20))
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    content_hash: Mapped[str] = mapped_column(sa.String(64))
    content: Mapped[str] = mapped_column(ExactText)
    event_id: Mapped[int | None] = mapped_column(sa.BigInteger)
    recorded_at: Mapped[datetime] = mapped_column(UtcDateTime)
