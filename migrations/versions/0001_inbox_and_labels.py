"""Projects, tasks, the inbox, jobs and labels.

Revision: 0001, after nothing. Types are written out, so that this file means the same when the code moves on.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

BigId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Moment = sa.DateTime(timezone=True).with_variant(sa.DateTime(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "projects",
        sa.Column("id", BigId, nullable=False),
        sa.Column("uid", sa.String(length=100), nullable=False),
        sa.Column("key", sa.String(length=100), nullable=False),
        sa.Column("title", sa.LargeBinary(), nullable=False),
        sa.Column("label_config", sa.LargeBinary(), nullable=True),
        sa.Column("alpha", sa.String(length=20), nullable=True),
        sa.Column("sampling", sa.String(length=50), nullable=True),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("created_at", Moment, nullable=False),
        sa.Column("updated_at", Moment, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_projects"),
        sa.UniqueConstraint("uid", name="uq_projects_uid"),
    )
    op.create_index("ix_projects_key", "projects", ["key"])
    op.create_table(
        "models",
        sa.Column("id", BigId, nullable=False),
        sa.Column("name", sa.String(length=300), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("classes", sa.JSON(), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("created_at", Moment, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_models"),
        sa.UniqueConstraint("name", "hash", name="uq_models_name_hash"),
    )
    op.create_table(
        "tasks",
        sa.Column("id", BigId, nullable=False),
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("external_id", sa.String(length=200), nullable=False),
        sa.Column("text_hash", sa.LargeBinary(length=32), nullable=False),
        sa.Column("text", sa.LargeBinary(), nullable=True),
        sa.Column("text_removed_at", Moment, nullable=True),
        sa.Column("language", sa.String(length=20), nullable=True),
        sa.Column("length", sa.Integer(), nullable=True),
        sa.Column("stream", sa.String(length=20), nullable=True),
        sa.Column("random_order", sa.Double(), nullable=True),
        sa.Column("selection_probability", sa.Double(), nullable=True),
        sa.Column("blind", sa.Boolean(), nullable=True),
        sa.Column("external_created_at", Moment, nullable=True),
        sa.Column("created_at", Moment, nullable=False),
        sa.Column("deleted_at", Moment, nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_tasks_project_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_tasks"),
        sa.UniqueConstraint("project_id", "external_id", "text_hash", name="uq_tasks_project_id_external_id_text_hash"),
    )
    op.create_index("ix_tasks_order", "tasks", ["project_id", "random_order"])
    op.create_index(
        "ix_tasks_text_age",
        "tasks",
        ["created_at"],
        sqlite_where=sa.text("text IS NOT NULL"),
        postgresql_where=sa.text("text IS NOT NULL"),
    )
    op.create_table(
        "task_deletions",
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("external_id", sa.String(length=200), nullable=False),
        sa.Column("at", Moment, nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name="fk_task_deletions_project_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("project_id", "external_id", name="pk_task_deletions"),
    )
    op.create_table(
        "events",
        sa.Column("id", BigId, nullable=False),
        sa.Column("delivery", sa.String(length=36), nullable=False),
        sa.Column("received_at", Moment, nullable=False),
        sa.Column("action", sa.String(length=100), nullable=False),
        sa.Column("project_key", sa.String(length=100), nullable=False),
        sa.Column("ordering_key", sa.String(length=200), nullable=True),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=10), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("claims", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("due_at", Moment, nullable=False),
        sa.Column("claimed_by", sa.String(length=200), nullable=True),
        sa.Column("processed_at", Moment, nullable=True),
        sa.CheckConstraint("state IN ('pending', 'done', 'skipped', 'dead')", name=op.f("ck_events_state")),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sa.UniqueConstraint("delivery", name="uq_events_delivery"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_events_order",
        "events",
        ["project_key", "ordering_key", "id"],
        sqlite_where=sa.text("state = 'pending'"),
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_index(
        "ix_events_pending",
        "events",
        ["id"],
        sqlite_where=sa.text("state = 'pending'"),
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_index("ix_events_state", "events", ["state", "id"])
    op.create_table(
        "jobs",
        sa.Column("id", BigId, nullable=False),
        sa.Column("kind", sa.String(length=50), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("project_id", BigId, nullable=True),
        sa.Column("state", sa.String(length=10), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("run_after", Moment, nullable=False),
        sa.Column("holder", sa.String(length=200), nullable=True),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("lease_until", Moment, nullable=True),
        sa.Column("heartbeat_at", Moment, nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("progress_done", sa.Integer(), nullable=False),
        sa.Column("progress_total", sa.Integer(), nullable=True),
        sa.Column("progress_note", sa.String(length=200), nullable=False),
        sa.Column("result", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", Moment, nullable=False),
        sa.Column("started_at", Moment, nullable=True),
        sa.Column("finished_at", Moment, nullable=True),
        sa.CheckConstraint("state IN ('queued', 'running', 'done', 'failed', 'cancelled')", name=op.f("ck_jobs_state")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_jobs_project_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_jobs_state", "jobs", ["state", "id"])
    op.create_index(
        "uq_jobs_queued",
        "jobs",
        ["key"],
        unique=True,
        sqlite_where=sa.text("state = 'queued'"),
        postgresql_where=sa.text("state = 'queued'"),
    )
    op.create_index(
        "uq_jobs_running",
        "jobs",
        ["key"],
        unique=True,
        sqlite_where=sa.text("state = 'running'"),
        postgresql_where=sa.text("state = 'running'"),
    )
    op.create_table(
        "annotations",
        sa.Column("id", BigId, nullable=False),
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("annotation_id", sa.BigInteger(), nullable=False),
        sa.Column("task_id", BigId, nullable=True),
        sa.Column("updated_at", Moment, nullable=True),
        sa.Column("deleted_at", Moment, nullable=True),
        sa.Column("content_hash", sa.String(length=64), nullable=True),
        sa.Column("spans", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("was_cancelled", sa.Boolean(), nullable=False),
        sa.Column("ground_truth", sa.Boolean(), nullable=False),
        sa.Column("bulk", sa.Boolean(), nullable=False),
        sa.Column("created_at", Moment, nullable=True),
        sa.Column("unique_id", sa.String(length=100), nullable=True),
        sa.Column("parent_prediction", sa.BigInteger(), nullable=True),
        sa.Column("parent_annotation", sa.BigInteger(), nullable=True),
        sa.Column("origins", sa.JSON(), nullable=False),
        sa.Column("lead_time", sa.Double(), nullable=True),
        sa.Column("completed_by", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_annotations_project_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_annotations_task_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_annotations"),
        sa.UniqueConstraint("project_id", "annotation_id", name="uq_annotations_project_id_annotation_id"),
    )
    op.create_index("ix_annotations_task_id", "annotations", ["task_id"])
    op.create_table(
        "labels",
        sa.Column("id", BigId, nullable=False),
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("task_id", BigId, nullable=False),
        sa.Column("policy", sa.String(length=30), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("annotation_row", BigId, nullable=True),
        sa.Column("content_hash", sa.String(length=64), nullable=True),
        sa.Column("spans", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("exclusion", sa.String(length=30), nullable=True),
        sa.Column("votes", sa.Integer(), nullable=False),
        sa.Column("voters", sa.Integer(), nullable=False),
        sa.Column("changed_at", Moment, nullable=False),
        sa.ForeignKeyConstraint(
            ["annotation_row"], ["annotations.id"], name="fk_labels_annotation_row", ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_labels_project_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_labels_task_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_labels"),
        sa.UniqueConstraint("task_id", "policy", name="uq_labels_task_id_policy"),
    )
    op.create_index("ix_labels_annotation_row", "labels", ["annotation_row"])
    op.create_index("ix_labels_project", "labels", ["project_id", "policy", "id"])
    op.create_table(
        "label_history",
        sa.Column("id", BigId, nullable=False),
        sa.Column("project_id", BigId, nullable=False),
        sa.Column("annotation_id", sa.BigInteger(), nullable=False),
        sa.Column("task_id", BigId, nullable=True),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("at", Moment, nullable=False),
        sa.Column("content_hash", sa.String(length=64), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("event_id", sa.BigInteger(), nullable=True),
        sa.Column("recorded_at", Moment, nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name="fk_label_history_project_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_label_history_task_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_label_history"),
        sa.UniqueConstraint("project_id", "annotation_id", "kind", "at", "content_hash", name="uq_label_history_fact"),
    )
    op.create_index("ix_label_history_task", "label_history", ["task_id", "at"])


def downgrade() -> None:
    op.drop_table("label_history")
    op.drop_table("labels")
    op.drop_table("annotations")
    op.drop_table("jobs")
    op.drop_table("events")
    op.drop_table("task_deletions")
    op.drop_table("tasks")
    op.drop_table("models")
    op.drop_table("projects")
