"""The location of ledger files, as passed to `connect`. Importing this module loads no filesystem library."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from waterclock._support.pickling import warn_of_secret
from waterclock._support.urls import without_secrets
from waterclock.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pyarrow import fs

    from waterclock.database.backend import Backend
    from waterclock.topics.store.ledger_files import LedgerFiles


class LedgerRoot(NamedTuple):
    """The place of ledger files, as passed to `connect`."""

    root: str | None  # folder or URL; None: the place in the catalogue
    filesystem: fs.FileSystem | None = None  # used instead of the one that ``root`` names
    default: str | None = None  # the place of new topics if no root is passed; None: no default

    def portable(self) -> LedgerRoot:
        """Return the same place for another process, which may have another working directory; for pickling."""
        if self.root is None or self.filesystem is not None:
            return self
        from waterclock.topics.store.roots import absolute

        root = absolute(self.root)
        warn_of_secret("ledgers", root, without_secrets(root))
        return self._replace(root=root)

    def needed(self, backend: Backend) -> LedgerFiles:
        """Return the place of a topic without a store; InvalidArgumentError if none is known."""
        root = self.default if self.root is None else self.root
        if root is None:
            raise InvalidArgumentError(
                f"ledgers is missing. Name a folder or a URL for the ledger files that every user of {backend.name} can"
                " reach"
            )
        from waterclock.topics.store.ledger_files import LedgerFiles

        return LedgerFiles(root, self.filesystem)


def as_root(ledgers: str | LedgerRoot | None) -> LedgerRoot:
    """Convert a caller's folder or URL."""
    return ledgers if isinstance(ledgers, LedgerRoot) else LedgerRoot(ledgers)


def ledgers_beside(database: str) -> str:
    """Return the default folder of an SQLite database's ledgers."""
    return f"{Path(database).absolute()}-ledgers"
