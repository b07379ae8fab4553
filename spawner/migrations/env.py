"""Run the migrations on the connection that records.py hands over; there is no alembic.ini and no URL here."""

from alembic import context

from spawner.records import Base

connection = context.config.attributes["connection"]
# batch: SQLite cannot alter a column, so Alembic copies the table; harmless on PostgreSQL
context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
