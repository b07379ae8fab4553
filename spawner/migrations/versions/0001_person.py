"""Persons: who has which uid and home, assigned once.

Revision ID: 0001
Revises:
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "person",
        sa.Column("sub", sa.String(255), nullable=False),
        sa.Column("uid", sa.BigInteger(), nullable=False),
        sa.Column("hub_name", sa.String(255), nullable=False),
        sa.Column("home", sa.String(255), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("sub", name="pk_person"),
        sa.UniqueConstraint("uid", name="uq_person_uid"),
        sa.UniqueConstraint("hub_name", name="uq_person_hub_name"),
        sa.UniqueConstraint("home", name="uq_person_home"),
    )


def downgrade() -> None:
    op.drop_table("person")
