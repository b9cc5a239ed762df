"""Attempts at scoring a label are counted before the work, so that one that always fails is set aside; turns of events.

Revision: 0011, after 0010. The indexes give the next event of the next project without walking another project's.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

BigId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Moment = sa.DateTime(timezone=True).with_variant(sa.DateTime(), "sqlite")
PENDING = sa.text("state = 'pending'")
ASIDE = sa.text("set_aside_at IS NOT NULL")


def upgrade() -> None:
    op.create_table(
        "scoring_attempts",
        sa.Column("task_id", BigId, nullable=False),
        sa.Column("model_id", BigId, nullable=False),
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("label_revision", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("set_aside_at", Moment, nullable=True),
        sa.Column("updated_at", Moment, nullable=False),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_scoring_attempts_task_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_scoring_attempts_model_id"),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name="fk_scoring_attempts_project_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("task_id", "model_id", name="pk_scoring_attempts"),
    )
    op.create_index(
        "ix_scoring_attempts_aside",
        "scoring_attempts",
        ["project_id", "task_id"],
        sqlite_where=ASIDE,
        postgresql_where=ASIDE,
    )
    op.create_index("ix_scoring_attempts_project", "scoring_attempts", ["project_id", "model_id"])
    _order_events("state", "project_key", "ordering_key", "id")
    op.create_index(
        "ix_events_turns", "events", ["state", "project_key", "id"], sqlite_where=PENDING, postgresql_where=PENDING
    )


def downgrade() -> None:
    op.drop_index("ix_events_turns", "events")
    _order_events("project_key", "ordering_key", "id")
    op.drop_table("scoring_attempts")


def _order_events(*names: str) -> None:
    op.drop_index("ix_events_order", "events")
    op.create_index("ix_events_order", "events", list(names), sqlite_where=PENDING, postgresql_where=PENDING)
