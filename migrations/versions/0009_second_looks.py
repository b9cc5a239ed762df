"""How plausible a model finds confirmed labels, which of them are listed for a second look, and what came of it.

Revision: 0009, after 0008.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

BigId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Moment = sa.DateTime(timezone=True).with_variant(sa.DateTime(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "second_looks",
        sa.Column("id", BigId, nullable=False),
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("model_id", BigId, nullable=False),
        sa.Column("task_id", BigId, nullable=False),
        sa.Column("label_revision", sa.Integer(), nullable=False),
        sa.Column("score", sa.Double(), nullable=False),
        sa.Column("doubt", sa.Double(), nullable=False),
        sa.Column("place", sa.Double(), nullable=False),
        sa.Column("evidence", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=10), nullable=False),
        sa.Column("p_value", sa.Double(), nullable=True),
        sa.Column("listed_revision", sa.Integer(), nullable=True),
        sa.Column("settled_revision", sa.Integer(), nullable=True),
        sa.Column("settled_how", sa.String(length=20), nullable=True),
        sa.Column("updated_at", Moment, nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_second_looks_project_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_second_looks_model_id"),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_second_looks_task_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_second_looks"),
        sa.UniqueConstraint("task_id", "model_id", name="uq_second_looks_task"),
    )
    op.create_index("ix_second_looks_state", "second_looks", ["project_id", "model_id", "state", "score"])


def downgrade() -> None:
    op.drop_table("second_looks")
