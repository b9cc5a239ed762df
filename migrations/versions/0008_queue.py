"""What waits for a look, in order, so that a page of the queue is a short read; and the score of each served set.

Revision: 0008, after 0007. Tasks that wait already get a row without a score; the worker (or `surespan queue`) works
the scores out, a few hundred at a time.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

BigId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Moment = sa.DateTime(timezone=True).with_variant(sa.DateTime(), "sqlite")

# The last set of every living task without a label, by model. Of blind tasks nothing is taken over but that they wait.
WAITING = """
INSERT INTO queue (task_id, model_id, project_id, blind, probability, set_size, is_open, stratum, served_at)
SELECT s.task_id, s.model_id, t.project_id, s.shadow, NULL,
       CASE WHEN s.shadow THEN NULL ELSE s.set_size END,
       CASE WHEN s.shadow THEN NULL ELSE s.is_open END,
       CASE WHEN s.shadow THEN NULL ELSE s.stratum END,
       s.served_at
FROM served_sets s JOIN tasks t ON t.id = s.task_id
WHERE t.deleted_at IS NULL
  AND s.id = (SELECT n.id FROM served_sets n WHERE n.task_id = s.task_id AND n.model_id = s.model_id
              ORDER BY n.served_at DESC, n.id DESC LIMIT 1)
  AND NOT EXISTS (SELECT 1 FROM labels l
                  WHERE l.task_id = s.task_id AND l.policy = 'majority' AND l.exclusion IS NULL)
"""


def upgrade() -> None:
    op.add_column("served_sets", sa.Column("score", sa.Double(), nullable=True))
    op.create_table(
        "queue",
        sa.Column("task_id", BigId, nullable=False),
        sa.Column("model_id", BigId, nullable=False),
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("score", sa.Double(), nullable=True),
        sa.Column("blind", sa.Boolean(), nullable=False),
        sa.Column("probability", sa.Double(), nullable=True),
        sa.Column("set_size", sa.Integer(), nullable=True),
        sa.Column("is_open", sa.Boolean(), nullable=True),
        sa.Column("stratum", sa.String(length=100), nullable=True),
        sa.Column("served_at", Moment, nullable=False),
        sa.Column("opened_at", Moment, nullable=True),
        sa.Column("claimed_by", sa.String(length=100), nullable=True),
        sa.Column("claimed_until", Moment, nullable=True),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_queue_task_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_queue_model_id"),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_queue_project_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("task_id", "model_id", name="pk_queue"),
    )
    op.execute(WAITING)
    op.create_index("ix_queue_order", "queue", ["project_id", "model_id", "score", "task_id"])
    claimed, unfilled = sa.text("claimed_by IS NOT NULL"), sa.text("score IS NULL")
    op.create_index(
        "ix_queue_claims", "queue", ["project_id", "claimed_by"], sqlite_where=claimed, postgresql_where=claimed
    )
    skipped = sa.text("exclusion = 'skipped'")
    op.create_index(
        "ix_labels_skipped", "labels", ["project_id", "policy", "id"], sqlite_where=skipped, postgresql_where=skipped
    )
    # The order that is in force now, and the first review order, without reading every slot of a project.
    op.create_index("ix_sampling_periods_order", "sampling_periods", ["project_id", "order", "first_at"])
    op.create_index("ix_sampling_periods_last", "sampling_periods", ["project_id", "last_at"])
    op.create_index("ix_queue_unfilled", "queue", ["task_id"], sqlite_where=unfilled, postgresql_where=unfilled)


def downgrade() -> None:
    op.drop_index("ix_sampling_periods_last", "sampling_periods")
    op.drop_index("ix_labels_skipped", "labels")
    op.drop_index("ix_sampling_periods_order", "sampling_periods")
    op.drop_table("queue")
    with op.batch_alter_table("served_sets") as table:
        table.drop_column("score")
