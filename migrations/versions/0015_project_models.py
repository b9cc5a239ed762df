"""Models of projects: which there are, which one serves each, and the files they are loaded from.

Revision: 0015, after 0014. No project has a model of its own yet: the settings' model goes on serving all of them. On
the way down the models are lost with their files: projects are served by the settings' model again, and thresholds
fitted for a model that is gone are left alone.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

BigId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Moment = sa.DateTime(timezone=True).with_variant(sa.DateTime(), "sqlite")
SERVING = sa.text("state = 'serving'")


def upgrade() -> None:
    op.create_table(
        "project_models",
        sa.Column("id", BigId, nullable=False),
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("model_hash", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=300), nullable=False),
        sa.Column("classes", sa.JSON(), nullable=False),
        sa.Column("base", sa.String(length=64), nullable=False),
        sa.Column("labels", sa.Integer(), nullable=False),
        sa.Column("labels_until", Moment, nullable=True),
        sa.Column("recipe", sa.JSON(), nullable=False),
        sa.Column("figures", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=10), nullable=False),
        sa.Column("asked_by", sa.String(length=200), nullable=False),
        sa.Column("why", sa.String(length=300), nullable=False),
        sa.Column("created_at", Moment, nullable=False),
        sa.Column("promoted_at", Moment, nullable=True),
        sa.Column("retired_at", Moment, nullable=True),
        sa.CheckConstraint("state IN ('candidate', 'serving', 'retired')", name=op.f("ck_project_models_state")),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name="fk_project_models_project_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_project_models"),
        sa.UniqueConstraint("project_id", "model_hash", name="uq_project_models_project_id_model_hash"),
    )
    op.create_index("ix_project_models_model_hash", "project_models", ["model_hash"])
    op.create_index(
        "uq_project_models_serving",
        "project_models",
        ["project_id"],
        unique=True,
        sqlite_where=SERVING,
        postgresql_where=SERVING,
    )
    op.create_table(
        "model_files",
        sa.Column("model_hash", sa.String(length=64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("path", sa.LargeBinary(), nullable=True),
        sa.Column("stored_at", Moment, nullable=False),
        sa.PrimaryKeyConstraint("model_hash", name="pk_model_files"),
    )
    op.create_table(
        "model_chunks",
        sa.Column("model_hash", sa.String(length=64), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["model_hash"], ["model_files.model_hash"], name="fk_model_chunks_model_hash", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("model_hash", "number", name="pk_model_chunks"),
    )


def downgrade() -> None:
    op.drop_table("model_chunks")
    op.drop_table("model_files")
    op.drop_table("project_models")
