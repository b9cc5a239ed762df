"""Calibration rows become rows of units: a text's sentences, each with its own scores and stratum.

Revision: 0012, after 0011. A stored row is the one unit of its task until its label is scored again, which the worker
does for every row without `stop`: where the text is one sentence nothing else changes. On the way down the rows of
tasks with several units go: the earlier release scores their labels again.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

LIVE = sa.text("removed_at_revision IS NULL")
REFIT = ["cell_id", "nll", "rank", "cumulative", "weight", "task_id"]


def upgrade() -> None:
    op.add_column("calibration_scores", sa.Column("unit", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("calibration_scores", sa.Column("start", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("calibration_scores", sa.Column("stop", sa.Integer(), nullable=True))
    op.add_column("calibration_scores", sa.Column("drawn", sa.Boolean(), nullable=False, server_default=sa.true()))
    if op.get_bind().dialect.name != "sqlite":
        # Processes of the earlier release may run on for a while: what they write says by this that it is not counted.
        op.alter_column("calibration_scores", "drawn", server_default=sa.false())
    _index(["task_id", "model_id", "unit"], [*REFIT, "unit"])
    op.add_column("calibration_cells", sa.Column("tasks", sa.BigInteger(), nullable=False, server_default="0"))
    op.execute("UPDATE calibration_cells SET tasks = n")
    with op.batch_alter_table("calibration_cells") as table:
        table.create_check_constraint("tasks", "tasks >= 0 AND tasks <= n")
    for scope, shown in (("units", "0, 0"), ("whole", "SUM(shown), SUM(accepted)")):  # so far every text was one unit
        op.execute(  # the scopes are named above
            "INSERT INTO coverage_counts (project_id, model_id, day, version_id, kind, scope, name, pool, n, alpha, "
            "guarantee, tasks, total, covered, shown, accepted, open, empty, singleton, size) "
            f"SELECT project_id, model_id, day, version_id, kind, '{scope}', '', '', 0, MAX(alpha), '', SUM(tasks), "
            f"SUM(total), SUM(covered), {shown}, 0, 0, 0, 0 FROM coverage_counts WHERE scope = 'stratum' "
            "GROUP BY project_id, model_id, day, version_id, kind"
        )


def downgrade() -> None:
    # The earlier release cannot read the lists of several units.
    first = "substr(ranked, 1, 1) = x'02'" if op.get_bind().dialect.name == "sqlite" else "get_byte(ranked, 0) = 2"
    op.execute(f"DELETE FROM served_sets WHERE {first}")
    op.execute("DELETE FROM coverage_counts WHERE scope IN ('units', 'whole')")
    several = "SELECT task_id FROM calibration_scores WHERE unit > 0"
    op.execute(
        f"DELETE FROM entity_scores WHERE score_id IN (SELECT id FROM calibration_scores WHERE task_id IN ({several}))"
    )
    op.execute(f"DELETE FROM calibration_scores WHERE task_id IN (SELECT task_id FROM ({several}) AS those)")
    live = "calibration_scores s WHERE s.cell_id = calibration_cells.id AND s.removed_at_revision IS NULL"
    # Compared with the greatest finite double: infinity is written differently by the two databases.
    infinite = "s.nll > 1.7976931348623157e308"
    op.execute(
        f"UPDATE calibration_cells SET n = (SELECT COUNT(*) FROM {live}), "
        f"n_infinite = (SELECT COUNT(*) FROM {live} AND {infinite}), tasks = 0"
    )
    with op.batch_alter_table("calibration_cells") as table:
        table.drop_constraint("tasks", type_="check")
        table.drop_column("tasks")
    _index(["task_id", "model_id"], REFIT)
    for name in ("drawn", "stop", "start", "unit"):
        op.drop_column("calibration_scores", name)


def _index(live: list[str], refit: list[str]) -> None:
    op.drop_index("uq_calibration_scores_live", "calibration_scores")
    op.create_index(
        "uq_calibration_scores_live",
        "calibration_scores",
        live,
        unique=True,
        sqlite_where=LIVE,
        postgresql_where=LIVE,
    )
    op.drop_index("ix_calibration_scores_nll", "calibration_scores")
    op.create_index("ix_calibration_scores_nll", "calibration_scores", refit, sqlite_where=LIVE, postgresql_where=LIVE)
