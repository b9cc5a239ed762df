"""Tasks that are accepted unopened: the decisions, what was accepted, and what audit tasks would have met.

Revision: 0014, after 0013. Annotations get a mark for those that acceptance made; none of those that are there is. On
the way down the mark is lost, so the annotations of acceptance would count as a person's: withdraw them first.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

BigId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Moment = sa.DateTime(timezone=True).with_variant(sa.DateTime(), "sqlite")
SENT = sa.text("state <> 'withdrawn'")


def upgrade() -> None:
    op.add_column("annotations", sa.Column("accepted", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.create_table(
        "acceptances",
        sa.Column("id", BigId, nullable=False),
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("model_id", BigId, nullable=False),
        sa.Column("version_id", BigId, nullable=True),
        sa.Column("promise", sa.String(length=20), nullable=False),
        sa.Column("max_error", sa.String(length=20), nullable=False),
        sa.Column("delta", sa.Double(), nullable=False),
        sa.Column("labels", sa.Integer(), nullable=False),
        sa.Column("tasks", sa.Integer(), nullable=False),
        sa.Column("level", sa.Double(), nullable=True),
        sa.Column("share", sa.Double(), nullable=False),
        sa.Column("below", sa.Integer(), nullable=False),
        sa.Column("lost", sa.Double(), nullable=False),
        sa.Column("bound", sa.Double(), nullable=False),
        sa.Column("why", sa.String(length=200), nullable=False),
        sa.Column("decided_at", Moment, nullable=False),
        sa.Column("decided_by", sa.String(length=200), nullable=False),
        sa.Column("account", sa.BigInteger(), nullable=True),
        sa.Column("acted_at", Moment, nullable=True),
        sa.Column("withdrawn_at", Moment, nullable=True),
        sa.Column("withdrawn_why", sa.String(length=300), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_acceptances_project_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_acceptances_model_id"),
        sa.PrimaryKeyConstraint("id", name="pk_acceptances"),
        sa.UniqueConstraint("project_id", "number", name="uq_acceptances_project_id_number"),
    )
    op.create_table(
        "accepted_tasks",
        sa.Column("id", BigId, nullable=False),
        sa.Column("acceptance_id", BigId, nullable=False),
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("task_id", BigId, nullable=False),
        sa.Column("unique_id", sa.String(length=36), nullable=False),
        sa.Column("state", sa.String(length=10), nullable=False),
        sa.Column("annotation_id", sa.BigInteger(), nullable=True),
        sa.Column("updated_at", Moment, nullable=False),
        sa.CheckConstraint("state IN ('planned', 'sent', 'withdrawn')", name=op.f("ck_accepted_tasks_state")),
        sa.ForeignKeyConstraint(
            ["acceptance_id"], ["acceptances.id"], name="fk_accepted_tasks_acceptance_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name="fk_accepted_tasks_project_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_accepted_tasks_task_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_accepted_tasks"),
        sa.UniqueConstraint("acceptance_id", "task_id", name="uq_accepted_tasks_acceptance_id_task_id"),
        sa.UniqueConstraint("unique_id", name="uq_accepted_tasks_unique_id"),
    )
    op.create_index("ix_accepted_tasks_state", "accepted_tasks", ["acceptance_id", "state", "task_id"])
    op.create_index("ix_accepted_tasks_annotation", "accepted_tasks", ["project_id", "annotation_id"])
    op.create_index(
        "uq_accepted_tasks_live", "accepted_tasks", ["task_id"], unique=True, sqlite_where=SENT, postgresql_where=SENT
    )
    op.create_table(
        "shadow_acceptances",
        sa.Column("acceptance_id", BigId, nullable=False),
        sa.Column("task_id", BigId, nullable=False),
        sa.Column("spans", sa.JSON(), nullable=False),
        sa.Column("units", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["acceptance_id"], ["acceptances.id"], name="fk_shadow_acceptances_acceptance_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_shadow_acceptances_task_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("acceptance_id", "task_id", name="pk_shadow_acceptances"),
    )
    op.create_index("ix_shadow_acceptances_task_id", "shadow_acceptances", ["task_id"])


def downgrade() -> None:
    op.drop_table("shadow_acceptances")
    op.drop_table("accepted_tasks")
    op.drop_table("acceptances")
    op.drop_column("annotations", "accepted")
