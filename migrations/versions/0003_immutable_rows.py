"""Triggers that refuse any change to rows which are history: threshold versions, their summaries, what was said.

Revision: 0003, after 0002. Deleting stays possible, because removing a project removes its rows.
"""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

TABLES = ("threshold_versions", "thresholds", "activations", "label_history")


def upgrade() -> None:
    if op.get_context().dialect.name == "sqlite":
        for table in TABLES:
            op.execute(
                f"CREATE TRIGGER {table}_immutable BEFORE UPDATE ON {table} "
                f"BEGIN SELECT RAISE(ABORT, 'rows of {table} are never changed'); END"
            )
        return
    op.execute(
        "CREATE FUNCTION surespan_refuse_update() RETURNS trigger LANGUAGE plpgsql AS $$ "
        "BEGIN RAISE EXCEPTION 'rows of % are never changed', TG_TABLE_NAME "
        "USING ERRCODE = 'integrity_constraint_violation'; END $$"
    )
    for table in TABLES:
        op.execute(
            f"CREATE TRIGGER {table}_immutable BEFORE UPDATE ON {table} "
            "FOR EACH ROW EXECUTE FUNCTION surespan_refuse_update()"
        )


def downgrade() -> None:
    if op.get_context().dialect.name == "sqlite":
        for table in TABLES:
            op.execute(f"DROP TRIGGER {table}_immutable")
        return
    for table in TABLES:
        op.execute(f"DROP TRIGGER {table}_immutable ON {table}")
    op.execute("DROP FUNCTION surespan_refuse_update()")
