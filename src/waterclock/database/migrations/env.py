"""Alembic's entry point, which runs the migrations on the library's connection, or writes their SQL."""

from __future__ import annotations

from alembic import context

given = context.config.attributes
if context.is_offline_mode():
    context.configure(dialect_name=given["dialect"], version_table=given["version_table"])
    with context.begin_transaction():
        context.run_migrations()
else:
    context.configure(connection=given["connection"], version_table=given["version_table"])
    context.run_migrations()
