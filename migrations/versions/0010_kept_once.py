"""What nothing reads goes, and the order of a project's tasks is kept once: as sightings, beside the lead's word.

Revision: 0010, after 0009. Of calibration rows `predicted_entities` (always 0), of their cells `part` (always
`calibration`), and an index that no query walks; of projects `options` (never written) and `sampling` (never read).
The state `streams` becomes `projects.shuffled` and, for annotators who follow our review queue, the source of a
sighting. What `place` meant in `entity_scores`, and `score` in the queue and in served sets, is now its name. On the
way down each comes back with what the rows say.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

BigId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Moment = sa.DateTime(timezone=True).with_variant(sa.DateTime(), "sqlite")
LIVE = sa.text("removed_at_revision IS NULL")
SAMPLING = {"uniform": "Uniform sampling", "sequential": "Sequential sampling", "review": "Uncertainty sampling"}

projects = sa.table(
    "projects", sa.column("id", BigId), sa.column("sampling", sa.String()), sa.column("shuffled", sa.Boolean())
)
states = sa.table(
    "project_state",
    sa.column("project_id", BigId),
    sa.column("name", sa.String()),
    sa.column("value", sa.JSON()),
    sa.column("updated_at", Moment),
)
periods = sa.table(
    "sampling_periods",
    sa.column("project_id", BigId),
    sa.column("slot", Moment),
    sa.column("order", sa.String()),
    sa.column("first_at", Moment),
    sa.column("last_at", Moment),
    sa.column("source", sa.String()),
)


def upgrade() -> None:
    op.add_column("projects", sa.Column("shuffled", sa.Boolean(), nullable=False, server_default=sa.false()))
    _keep_order_once()
    followed = sa.text("source = 'queue'")
    op.create_index(
        "ix_sampling_periods_queue",
        "sampling_periods",
        ["project_id"],
        sqlite_where=followed,
        postgresql_where=followed,
    )
    op.drop_column("projects", "options")
    op.drop_column("projects", "sampling")
    op.drop_index("ix_calibration_scores_cumulative", "calibration_scores")
    op.drop_column("calibration_scores", "predicted_entities")
    _rebuild_cells(part=False)
    op.execute("ALTER TABLE entity_scores RENAME COLUMN place TO class_rank")
    op.execute("ALTER TABLE queue RENAME COLUMN score TO priority")
    op.execute("ALTER TABLE served_sets RENAME COLUMN score TO priority")


def downgrade() -> None:
    op.execute("ALTER TABLE served_sets RENAME COLUMN priority TO score")
    op.execute("ALTER TABLE queue RENAME COLUMN priority TO score")
    op.execute("ALTER TABLE entity_scores RENAME COLUMN class_rank TO place")
    _rebuild_cells(part=True)
    # Defaults are for the rows that are there; the earlier release writes these columns itself.
    op.add_column(
        "calibration_scores", sa.Column("predicted_entities", sa.Integer(), nullable=False, server_default="0")
    )
    op.create_index(
        "ix_calibration_scores_cumulative",
        "calibration_scores",
        ["cell_id", "cumulative"],
        sqlite_where=LIVE,
        postgresql_where=LIVE,
    )
    op.add_column("projects", sa.Column("sampling", sa.String(length=50), nullable=True))
    op.add_column("projects", sa.Column("options", sa.JSON(), nullable=False, server_default="{}"))
    _keep_order_thrice()
    op.drop_index("ix_sampling_periods_queue", "sampling_periods")
    op.drop_column("projects", "shuffled")


def _keep_order_once() -> None:
    connection = op.get_bind()
    declared = sa.select(states.c.project_id, states.c.value, states.c.updated_at).where(states.c.name == "streams")
    for project, value, at in connection.execute(declared).all():
        if value.get("shuffled"):
            connection.execute(projects.update().where(projects.c.id == project).values(shuffled=True))
        if value.get("queue"):
            _mark_followed(connection, project, at)
    connection.execute(states.delete().where(states.c.name == "streams"))


def _mark_followed(connection: sa.Connection, project: int, at: datetime) -> None:
    """Make the newest sighting of review order one of the queue; there is one wherever the queue was ever followed."""
    mine = sa.and_(periods.c.project_id == project, periods.c.order == "review")
    slot = connection.execute(sa.select(sa.func.max(periods.c.slot)).where(mine)).scalar_one()
    if slot is not None:
        connection.execute(periods.update().where(mine, periods.c.slot == slot).values(source="queue"))
        return
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    slot = at - (at - (epoch if at.tzinfo else epoch.replace(tzinfo=None))) % timedelta(minutes=10)
    row = {"project_id": project, "slot": slot, "order": "review", "first_at": at, "last_at": at, "source": "queue"}
    connection.execute(periods.insert().values(row))


def _keep_order_thrice() -> None:
    connection = op.get_bind()
    for project, shuffled in connection.execute(sa.select(projects.c.id, projects.c.shuffled)).all():
        mine = periods.c.project_id == project
        seen = connection.execute(
            sa.select(periods.c.order, periods.c.last_at).where(mine).order_by(periods.c.last_at.desc()).limit(1)
        ).one_or_none()
        if seen is not None:
            sampling = SAMPLING.get(seen.order)
            connection.execute(projects.update().where(projects.c.id == project).values(sampling=sampling))
        followed = connection.execute(
            sa.select(sa.func.max(periods.c.last_at)).where(mine, periods.c.source == "queue")
        ).scalar_one()
        if shuffled or followed is not None:
            value = {"shuffled": bool(shuffled)} | ({"queue": True} if followed is not None else {})
            at = followed or sa.func.now()
            connection.execute(states.insert().values(project_id=project, name="streams", value=value, updated_at=at))


def _rebuild_cells(*, part: bool) -> None:
    names = ["project_id", "model_id", "stratum", "evidence", *(["part"] if part else []), "exclusion"]
    column = sa.Column("part", sa.String(length=20), nullable=False, server_default="calibration")
    if op.get_context().dialect.name != "sqlite":
        op.drop_constraint("uq_calibration_cells_cell", "calibration_cells")
        if part:
            op.add_column("calibration_cells", column)
        else:
            op.drop_column("calibration_cells", "part")
        op.create_unique_constraint("uq_calibration_cells_cell", "calibration_cells", names)
        return
    # SQLite cannot change a constraint: the table is made anew. Foreign keys are off meanwhile (`Store.rebuild`).
    op.create_table(
        "new_cells",
        sa.Column("id", BigId, nullable=False),
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("model_id", BigId, nullable=False),
        sa.Column("stratum", sa.String(length=100), nullable=False),
        sa.Column("evidence", sa.String(length=20), nullable=False),
        *([column] if part else []),
        sa.Column("exclusion", sa.String(length=30), nullable=False),
        sa.Column("n", sa.BigInteger(), nullable=False),
        sa.Column("n_infinite", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("n >= 0 AND n_infinite >= 0 AND n_infinite <= n", name=op.f("ck_calibration_cells_counts")),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_calibration_cells_model_id"),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name="fk_calibration_cells_project_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_calibration_cells"),
        sa.UniqueConstraint(*names, name="uq_calibration_cells_cell"),
    )
    shared = "id, project_id, model_id, stratum, evidence, exclusion, n, n_infinite"
    op.execute(f"INSERT INTO new_cells ({shared}) SELECT {shared} FROM calibration_cells")
    op.drop_table("calibration_cells")
    op.rename_table("new_cells", "calibration_cells")
