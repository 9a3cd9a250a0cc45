"""The HTTP interface: one file for each noun."""

import waterclock.server.names  # noqa: F401  # pyright: ignore[reportUnusedImport]  # registers a convertor
