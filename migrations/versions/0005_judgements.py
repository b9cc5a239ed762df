"""What labels said about the sets that were shown: one judgement per task and model, counters, and consumed rows.

Revision: 0005, after 0004.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

BigId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Moment = sa.DateTime(timezone=True).with_variant(sa.DateTime(), "sqlite")


def upgrade() -> None:
    op.add_column("served_sets", sa.Column("alpha", sa.String(length=20), nullable=True))
    op.create_table(
        "judgements",
        sa.Column("task_id", BigId, nullable=False),
        sa.Column("model_id", BigId, nullable=False),
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("label_revision", sa.Integer(), nullable=False),
        sa.Column("version_id", sa.BigInteger(), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("stratum", sa.String(length=100), nullable=False),
        sa.Column("pool", sa.String(length=100), nullable=False),
        sa.Column("n", sa.BigInteger(), nullable=False),
        sa.Column("alpha", sa.String(length=20), nullable=False),
        sa.Column("guarantee", sa.String(length=20), nullable=False),
        sa.Column("findings", sa.JSON(), nullable=False),
        sa.Column("judged_at", Moment, nullable=False),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_judgements_task_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_judgements_model_id"),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_judgements_project_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("task_id", "model_id", name="pk_judgements"),
    )
    op.create_table(
        "coverage_counts",
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("model_id", BigId, nullable=False),
        sa.Column("version_id", sa.BigInteger(), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("scope", sa.String(length=10), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("pool", sa.String(length=100), nullable=False),
        sa.Column("n", sa.BigInteger(), nullable=False),
        sa.Column("alpha", sa.String(length=20), nullable=False),
        sa.Column("guarantee", sa.String(length=20), nullable=False),
        sa.Column("tasks", sa.BigInteger(), nullable=False),
        sa.Column("total", sa.BigInteger(), nullable=False),
        sa.Column("covered", sa.BigInteger(), nullable=False),
        sa.Column("shown", sa.BigInteger(), nullable=False),
        sa.Column("accepted", sa.BigInteger(), nullable=False),
        sa.Column("open", sa.BigInteger(), nullable=False),
        sa.Column("empty", sa.BigInteger(), nullable=False),
        sa.Column("singleton", sa.BigInteger(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name="fk_coverage_counts_project_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_coverage_counts_model_id"),
        sa.PrimaryKeyConstraint(
            "project_id", "model_id", "day", "version_id", "kind", "scope", "name", name="pk_coverage_counts"
        ),
    )
    op.create_table(
        "monitor_rows",
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("model_id", BigId, nullable=False),
        sa.Column("task_id", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("stratum", sa.String(length=100), nullable=False),
        sa.Column("score", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_monitor_rows_project_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_monitor_rows_model_id"),
        sa.PrimaryKeyConstraint("project_id", "model_id", "task_id", name="pk_monitor_rows"),
    )


def downgrade() -> None:
    # Where the monitors stood goes with what they counted: after another upgrade they count from the beginning.
    op.execute("DELETE FROM monitor WHERE kind IN ('watch', 'drift')")
    op.drop_table("monitor_rows")
    op.drop_table("coverage_counts")
    op.drop_table("judgements")
    with op.batch_alter_table("served_sets") as table:
        table.drop_column("alpha")
