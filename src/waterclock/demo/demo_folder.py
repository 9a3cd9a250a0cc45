"""The folder of a demo, and the batches in its database. This module works without Spark, for the live demo."""

from __future__ import annotations

import shutil
from pathlib import Path

import sqlalchemy as sa

from waterclock.batching.batch import Batch
from waterclock.connection import Database
from waterclock.errors import AlreadyExistsError

_MARK = ".waterclock-demo"


def make_fresh(folder: Path) -> None:
    """Create the folder of a demo, or empty the one of an earlier demo.

    Raises `AlreadyExistsError` if it holds anything else.
    """
    if folder.exists() and any(folder.iterdir()):
        if not (folder / _MARK).exists():
            raise AlreadyExistsError(
                f"cannot run the demo in {folder}: it holds other files. Choose another folder with --folder"
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MARK).touch()


def stored_batches(database: Database, name: str, *, acked: bool = False) -> list[Batch]:
    """Read the batches of a message table, or only the acked ones, in the order of their ids."""
    # Plain SQL, as from any client.
    table = sa.table(name, sa.column("message", sa.LargeBinary), sa.column("time_acked"), sa.column("id"))
    which = table.c.time_acked.is_not(None) if acked else sa.true()
    with database.backend.snapshot() as connection:
        payloads = connection.scalars(sa.select(table.c.message).where(which).order_by(table.c.id))
        return [Batch.from_bytes(payload) for payload in payloads]
