"""Labels on which annotators disagree are found without reading all labels.

Revision: 0016, after 0015. An index, made from what is there already.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

DISAGREEING = sa.text("votes < voters AND exclusion IS NULL")


def upgrade() -> None:
    op.create_index(
        "ix_labels_disagreeing",
        "labels",
        ["project_id", "policy", "id"],
        sqlite_where=DISAGREEING,
        postgresql_where=DISAGREEING,
    )


def downgrade() -> None:
    op.drop_index("ix_labels_disagreeing", "labels")
