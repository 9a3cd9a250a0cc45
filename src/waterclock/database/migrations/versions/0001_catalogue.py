"""The catalogue of the first release."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from waterclock.database.schema import (
    ingest_catalogue,
    process_catalogue,
    server_catalogue,
    table_catalogue,
    topic_catalogue,
    upkeep_catalogue,
)
from waterclock.database.schema.catalogue import metadata

revision = "0001"
down_revision = None

CATALOGUES = (
    ingest_catalogue,
    process_catalogue,
    server_catalogue,
    table_catalogue,
    topic_catalogue,
    upkeep_catalogue,
)  # importing them fills the metadata


def upgrade() -> None:
    """Create the tables as the code declares them; the next version freezes these definitions here.

    Skips existing tables and indexes: MariaDB commits each statement separately, so a crash may leave half of them.
    """
    migration = op.get_context()
    if migration.as_sql:
        metadata.create_all(sa.create_mock_engine(f"{migration.dialect.name}://", _write), checkfirst=False)
    else:
        metadata.create_all(op.get_bind())
        for table in metadata.tables.values():
            for index in table.indexes:
                index.create(op.get_bind(), checkfirst=True)
    if migration.dialect.name == "postgresql":
        # The data is already compressed; compressing it again makes an append three times as slow.
        op.execute("ALTER TABLE waterclock_entries ALTER COLUMN data SET STORAGE EXTERNAL")
        # They have no unique index. A server that replicates all tables would refuse to change their rows.
        for name in ("waterclock_groups", "waterclock_message_keys"):
            op.execute(f"ALTER TABLE {name} REPLICA IDENTITY FULL")


def _write(statement: sa.Executable, *_parameters: object) -> None:
    op.execute(statement)
