"""The HTTP interface: one file for each resource."""

import waterclock.server.names  # noqa: F401  # pyright: ignore[reportUnusedImport]  # registers a convertor
