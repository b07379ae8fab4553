"""The history of leases, and the GPUs and nodes that the operator has closed.

Revision ID: 0002
Revises: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "lease_history",
        sa.Column("lease", sa.String(255), nullable=False),
        sa.Column("hub", sa.String(255), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("server", sa.Text(), nullable=False),
        sa.Column("variant", sa.Text(), nullable=False),
        sa.Column("mode", sa.String(32), nullable=False),
        sa.Column("gpus", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("container", sa.String(64), nullable=False),
        sa.Column("address", sa.String(64), nullable=False),
        sa.Column("granted", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended", sa.DateTime(timezone=True), nullable=True),
        sa.Column("code", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("lease", name="pk_lease_history"),
    )
    op.create_index("ix_lease_history_user", "lease_history", ["user", "granted"])
    op.create_index("ix_lease_history_address", "lease_history", ["address", "granted"])
    op.create_table(
        "cordon",
        sa.Column("target", sa.String(255), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("target", name="pk_cordon"),
    )


def downgrade() -> None:
    op.drop_table("cordon")
    op.drop_index("ix_lease_history_address", "lease_history")
    op.drop_index("ix_lease_history_user", "lease_history")
    op.drop_table("lease_history")
