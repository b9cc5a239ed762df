"""What a project's parts remember, the order its tasks were given out in, and which labels trained which model.

Revision: 0004, after 0003.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

BigId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Moment = sa.DateTime(timezone=True).with_variant(sa.DateTime(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "project_state",
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("name", sa.String(length=50), nullable=False),
        sa.Column("value", sa.JSON(), nullable=False),
        sa.Column("updated_at", Moment, nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name="fk_project_state_project_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("project_id", "name", name="pk_project_state"),
    )
    op.create_table(
        "sampling_periods",
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("hour", Moment, nullable=False),
        sa.Column("order", sa.String(length=20), nullable=False),
        sa.Column("first_at", Moment, nullable=False),
        sa.Column("last_at", Moment, nullable=False),
        sa.Column("source", sa.String(length=20), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name="fk_sampling_periods_project_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("project_id", "hour", "order", name="pk_sampling_periods"),
    )
    op.create_table(
        "training_tasks",
        sa.Column("model_hash", sa.String(length=64), nullable=False),
        sa.Column("task_id", BigId, nullable=False),
        sa.Column("purpose", sa.String(length=20), nullable=False),
        sa.Column("recorded_at", Moment, nullable=False),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_training_tasks_task_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("model_hash", "task_id", name="pk_training_tasks"),
    )
    op.create_index("ix_training_tasks_task_id", "training_tasks", ["task_id"])


def downgrade() -> None:
    op.drop_table("training_tasks")
    op.drop_table("sampling_periods")
    op.drop_table("project_state")
