"""Rows that flags are controlled by: the errors of the best labeling in every confirmed task (METHODS 11).

Revision: 0013, after 0012. Rows written before have no errors yet: the worker scores their labels again, which changes
nothing else about them. Served sets keep how many places were flagged and how doubtful the best labeling was.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("calibration_scores", sa.Column("true_spans", sa.Integer(), nullable=True))
    op.add_column("calibration_scores", sa.Column("best_spans", sa.Integer(), nullable=True))
    big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "span_errors",
        sa.Column("score_id", big, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("missing", sa.Boolean(), nullable=False),
        sa.Column("level", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["score_id"], ["calibration_scores.id"], name="fk_span_errors_score_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("score_id", "number", name="pk_span_errors"),
        sqlite_with_rowid=False,
    )
    op.add_column("served_sets", sa.Column("flags", sa.Integer(), nullable=True))
    op.add_column("served_sets", sa.Column("doubt", sa.Double(), nullable=True))


def downgrade() -> None:
    # The earlier release cannot read lists with the floor of their candidates.
    first = "substr(ranked, 1, 1) = x'03'" if op.get_bind().dialect.name == "sqlite" else "get_byte(ranked, 0) = 3"
    op.execute(f"DELETE FROM served_sets WHERE {first}")
    op.execute("DELETE FROM coverage_counts WHERE scope = 'risk'")
    for name in ("doubt", "flags"):
        op.drop_column("served_sets", name)
    op.drop_table("span_errors")
    for name in ("best_spans", "true_spans"):
        op.drop_column("calibration_scores", name)
