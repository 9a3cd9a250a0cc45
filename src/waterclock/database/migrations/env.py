"""Alembic's entry: runs the steps on the connection that the library hands over."""

from __future__ import annotations

from alembic import context

connection = context.config.attributes["connection"]
context.configure(connection=connection, version_table=context.config.attributes["version_table"])
context.run_migrations()
