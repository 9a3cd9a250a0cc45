"""Heartbeats of processes, and the epochs of producers and readers, bear the glossary's words."""

from __future__ import annotations

from alembic import op

from waterclock.database.migrations.steps import rename_column, rename_table

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Rename a table and columns."""
    rename_table("waterclock_attendance", "waterclock_heartbeats")
    if op.get_bind().dialect.name == "postgresql":  # elsewhere a primary key has no name, or keeps it unseen
        op.execute("ALTER INDEX IF EXISTS waterclock_attendance_pkey RENAME TO waterclock_heartbeats_pkey")
    rename_column("waterclock_heartbeats", "told_at", "beat_at")
    rename_column("waterclock_producers", "epoch", "producer_epoch")
    rename_column("waterclock_subscriptions", "epoch", "reader_epoch")
