"""Calibration rows, threshold versions, served sets and monitors.

Revision: 0002, after 0001. Types are written out, so that this file means the same when the code moves on.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

BigId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Moment = sa.DateTime(timezone=True).with_variant(sa.DateTime(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "calibration_heads",
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("model_id", BigId, nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("changed_at", Moment, nullable=False),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_calibration_heads_model_id"),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name="fk_calibration_heads_project_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("project_id", "model_id", name="pk_calibration_heads"),
    )
    op.create_table(
        "calibration_cells",
        sa.Column("id", BigId, nullable=False),
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("model_id", BigId, nullable=False),
        sa.Column("stratum", sa.String(length=100), nullable=False),
        sa.Column("evidence", sa.String(length=20), nullable=False),
        sa.Column("part", sa.String(length=20), nullable=False),
        sa.Column("exclusion", sa.String(length=30), nullable=False),
        sa.Column("n", sa.BigInteger(), nullable=False),
        sa.Column("n_infinite", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("n >= 0 AND n_infinite >= 0 AND n_infinite <= n", name=op.f("ck_calibration_cells_counts")),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_calibration_cells_model_id"),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name="fk_calibration_cells_project_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_calibration_cells"),
        sa.UniqueConstraint(
            "project_id", "model_id", "stratum", "evidence", "part", "exclusion", name="uq_calibration_cells_cell"
        ),
    )
    op.create_table(
        "calibration_scores",
        sa.Column("id", BigId, nullable=False),
        sa.Column("task_id", BigId, nullable=False),
        sa.Column("model_id", BigId, nullable=False),
        sa.Column("cell_id", BigId, nullable=False),
        sa.Column("label_revision", sa.Integer(), nullable=False),
        sa.Column("nll", sa.Double(), nullable=False),
        sa.Column("rank", sa.Double(), nullable=False),
        sa.Column("cumulative", sa.Double(), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("entities", sa.Integer(), nullable=False),
        sa.Column("predicted_entities", sa.Integer(), nullable=False),
        sa.Column("added_at_revision", sa.BigInteger(), nullable=False),
        sa.Column("removed_at_revision", sa.BigInteger(), nullable=True),
        sa.Column("created_at", Moment, nullable=False),
        sa.ForeignKeyConstraint(
            ["cell_id"], ["calibration_cells.id"], name="fk_calibration_scores_cell_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_calibration_scores_model_id"),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_calibration_scores_task_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_calibration_scores"),
    )
    op.create_index("ix_calibration_scores_added", "calibration_scores", ["cell_id", "added_at_revision"])
    op.create_index(
        "ix_calibration_scores_cumulative",
        "calibration_scores",
        ["cell_id", "cumulative"],
        sqlite_where=sa.text("removed_at_revision IS NULL"),
        postgresql_where=sa.text("removed_at_revision IS NULL"),
    )
    op.create_index(
        "ix_calibration_scores_nll",
        "calibration_scores",
        ["cell_id", "nll", "rank", "cumulative", "weight", "task_id"],
        sqlite_where=sa.text("removed_at_revision IS NULL"),
        postgresql_where=sa.text("removed_at_revision IS NULL"),
    )
    op.create_index(
        "ix_calibration_scores_rank",
        "calibration_scores",
        ["cell_id", "rank"],
        sqlite_where=sa.text("removed_at_revision IS NULL"),
        postgresql_where=sa.text("removed_at_revision IS NULL"),
    )
    op.create_index(
        "uq_calibration_scores_live",
        "calibration_scores",
        ["task_id", "model_id"],
        unique=True,
        sqlite_where=sa.text("removed_at_revision IS NULL"),
        postgresql_where=sa.text("removed_at_revision IS NULL"),
    )
    op.create_table(
        "entity_scores",
        sa.Column("score_id", BigId, nullable=False),
        sa.Column("start", sa.Integer(), nullable=False),
        sa.Column("stop", sa.Integer(), nullable=False),
        sa.Column("label", sa.String(length=100), nullable=False),
        sa.Column("probability", sa.Double(), nullable=False),
        sa.Column("cumulative", sa.Double(), nullable=False),
        sa.Column("place", sa.Double(), nullable=False),
        sa.Column("rank", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["score_id"], ["calibration_scores.id"], name="fk_entity_scores_score_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("score_id", "start", "stop", "label", name="pk_entity_scores"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "threshold_versions",
        sa.Column("id", BigId, nullable=False),
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("model_id", BigId, nullable=False),
        sa.Column("alpha", sa.String(length=20), nullable=False),
        sa.Column("method", sa.String(length=50), nullable=False),
        sa.Column("evidence", sa.String(length=20), nullable=False),
        sa.Column("guarantee", sa.String(length=20), nullable=False),
        sa.Column("input_revision", sa.BigInteger(), nullable=False),
        sa.Column("n", sa.BigInteger(), nullable=False),
        sa.Column("pools", sa.Integer(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("content_hash", sa.String(length=64), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("created_at", Moment, nullable=False),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_threshold_versions_model_id"),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name="fk_threshold_versions_project_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_threshold_versions"),
        sa.UniqueConstraint("id", "project_id", "model_id", name="uq_threshold_versions_owner"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_threshold_versions_history", "threshold_versions", ["project_id", "model_id", "id"])
    op.create_table(
        "thresholds",
        sa.Column("version_id", BigId, nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("pool", sa.String(length=100), nullable=False),
        sa.Column("n", sa.BigInteger(), nullable=False),
        sa.Column("n_infinite", sa.BigInteger(), nullable=False),
        sa.Column("tau", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["version_id"], ["threshold_versions.id"], name="fk_thresholds_version_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("version_id", "kind", "pool", name="pk_thresholds"),
    )
    op.create_table(
        "active_versions",
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("model_id", BigId, nullable=False),
        sa.Column("version_id", BigId, nullable=False),
        sa.Column("activated_at", Moment, nullable=False),
        sa.ForeignKeyConstraint(
            ["version_id", "project_id", "model_id"],
            ["threshold_versions.id", "threshold_versions.project_id", "threshold_versions.model_id"],
            name="fk_active_versions_version",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("project_id", "model_id", name="pk_active_versions"),
    )
    op.create_table(
        "activations",
        sa.Column("id", BigId, nullable=False),
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("model_id", BigId, nullable=False),
        sa.Column("version_id", BigId, nullable=False),
        sa.Column("previous_id", BigId, nullable=True),
        sa.Column("reason", sa.String(length=200), nullable=False),
        sa.Column("at", Moment, nullable=False),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_activations_model_id"),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_activations_project_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["version_id"], ["threshold_versions.id"], name="fk_activations_version_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_activations"),
    )
    op.create_index("ix_activations_history", "activations", ["project_id", "model_id", "id"])
    op.create_table(
        "served_sets",
        sa.Column("id", BigId, nullable=False),
        sa.Column("task_id", BigId, nullable=False),
        sa.Column("model_id", BigId, nullable=False),
        sa.Column("version_id", BigId, nullable=True),
        sa.Column("shadow", sa.Boolean(), nullable=False),
        sa.Column("stratum", sa.String(length=100), nullable=False),
        sa.Column("pool", sa.String(length=100), nullable=False),
        sa.Column("guarantee", sa.String(length=20), nullable=False),
        sa.Column("n", sa.BigInteger(), nullable=False),
        sa.Column("tau", sa.Double(), nullable=False),
        sa.Column("is_open", sa.Boolean(), nullable=False),
        sa.Column("set_size", sa.Integer(), nullable=True),
        sa.Column("shown", sa.Integer(), nullable=False),
        sa.Column("ranked", sa.LargeBinary(), nullable=False),
        sa.Column("served_at", Moment, nullable=False),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_served_sets_model_id"),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_served_sets_task_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["version_id"], ["threshold_versions.id"], name="fk_served_sets_version_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_served_sets"),
    )
    op.create_index("ix_served_sets_age", "served_sets", ["served_at"])
    op.create_index("ix_served_sets_task", "served_sets", ["task_id", "model_id", "served_at"])
    op.create_index("ix_served_sets_version", "served_sets", ["version_id"])
    op.create_table(
        "monitor",
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("model_id", BigId, nullable=False),
        sa.Column("kind", sa.String(length=50), nullable=False),
        sa.Column("stratum", sa.String(length=100), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("consumed", sa.BigInteger(), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("state", sa.LargeBinary(), nullable=False),
        sa.Column("updated_at", Moment, nullable=False),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_monitor_model_id"),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_monitor_project_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("project_id", "model_id", "kind", "stratum", name="pk_monitor"),
    )
    op.create_table(
        "alarms",
        sa.Column("id", BigId, nullable=False),
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("model_id", BigId, nullable=False),
        sa.Column("kind", sa.String(length=50), nullable=False),
        sa.Column("stratum", sa.String(length=100), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("message", sa.LargeBinary(), nullable=False),
        sa.Column("raised_at", Moment, nullable=False),
        sa.Column("acknowledged_at", Moment, nullable=True),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_alarms_model_id"),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_alarms_project_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_alarms"),
    )
    op.create_index("ix_alarms_project", "alarms", ["project_id", "id"])


def downgrade() -> None:
    op.drop_table("alarms")
    op.drop_table("monitor")
    op.drop_table("served_sets")
    op.drop_table("activations")
    op.drop_table("active_versions")
    op.drop_table("thresholds")
    op.drop_table("threshold_versions")
    op.drop_table("entity_scores")
    op.drop_table("calibration_scores")
    op.drop_table("calibration_cells")
    op.drop_table("calibration_heads")
