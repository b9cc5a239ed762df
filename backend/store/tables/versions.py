"""Threshold versions: written once, never changed; which one is active is kept apart from them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from backend.store.columns import Base, BigId, UtcDateTime


class ThresholdVersion(Base):
    """One fitted thresholds object. The id is global and never reused; a trigger refuses any update."""

    __tablename__ = "threshold_versions"
    __table_args__ = (
        # The target of the composite key that keeps a version from being activated for another project or model.
        sa.UniqueConstraint("id", "project_id", "model_id", name="uq_threshold_versions_owner"),
        sa.Index("ix_threshold_versions_history", "project_id", "model_id", "id"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    project_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("projects.id", ondelete="CASCADE"))
    model_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("models.id"))
    alpha: Mapped[str] = mapped_column(sa.String(20))
    method: Mapped[str] = mapped_column(sa.String(50))
    evidence: Mapped[str] = mapped_column(sa.String(20))
    guarantee: Mapped[str] = mapped_column(sa.String(20))
    input_revision: Mapped[int] = mapped_column(sa.BigInteger)
    n: Mapped[int] = mapped_column(sa.BigInteger)
    pools: Mapped[int]
    content: Mapped[bytes] = mapped_column(sa.LargeBinary)
    content_hash: Mapped[str] = mapped_column(sa.String(64))
    details: Mapped[dict[str, Any]] = mapped_column(sa.JSON, default=dict)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Threshold(Base):
    """Summary of one pool or class of a version, for pages and comparisons; the object itself is `content`."""

    __tablename__ = "thresholds"

    version_id: Mapped[int] = mapped_column(
        BigId, sa.ForeignKey("threshold_versions.id", ondelete="CASCADE"), primary_key=True
    )
    kind: Mapped[str] = mapped_column(sa.String(20), primary_key=True)
    pool: Mapped[str] = mapped_column(sa.String(100), primary_key=True)
    n: Mapped[int] = mapped_column(sa.BigInteger)
    n_infinite: Mapped[int] = mapped_column(sa.BigInteger)
    tau: Mapped[float] = mapped_column(sa.Double)


class ActiveVersion(Base):
    """The version that serves (project, model): the primary key allows one, so there are never two."""

    __tablename__ = "active_versions"
    __table_args__ = (
        sa.ForeignKeyConstraint(
            ["version_id", "project_id", "model_id"],
            ["threshold_versions.id", "threshold_versions.project_id", "threshold_versions.model_id"],
            name="fk_active_versions_version",
            ondelete="CASCADE",
        ),
    )

    project_id: Mapped[int] = mapped_column(BigId, primary_key=True)
    model_id: Mapped[int] = mapped_column(BigId, primary_key=True)
    version_id: Mapped[int] = mapped_column(BigId)
    activated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Activation(Base):
    """Every activation, roll-backs included, in order."""

    __tablename__ = "activations"
    __table_args__ = (sa.Index("ix_activations_history", "project_id", "model_id", "id"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    project_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("projects.id", ondelete="CASCADE"))
    model_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("models.id"))
    version_id: Mapped[int] = mapped_column(BigId, sa.ForeignKey("threshold_versions.id", ondelete="CASCADE"))
    previous_id: Mapped[int | None] = mapped_column(BigId)
    reason: Mapped[str] = mapped_column(sa.String(200))
    at: Mapped[datetime] = mapped_column(UtcDateTime)
