"""Sightings of a project's order are kept by ten minutes instead of by the hour: a change within an hour is seen.

Revision: 0006, after 0005. Rows of whole hours stay true: each holds a first and a last moment.
"""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE sampling_periods RENAME COLUMN hour TO slot")


def downgrade() -> None:
    op.execute("ALTER TABLE sampling_periods RENAME COLUMN slot TO hour")
