"""Leases that the engine was told to end and did not.

Revision ID: 0003
Revises: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("lease_history", sa.Column("quarantine", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("lease_history", "quarantine")
