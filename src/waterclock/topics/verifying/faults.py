"""The faults that verifying a topic finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

FaultKind = Literal["missing ledger", "missing entries", "missing file", "damaged", "catalogue", "spare", "orphan"]
"""The kind of fault.

``missing ledger``, ``missing entries``: the catalogue has no row where its neighbours say that there was one.
``missing file``: the store is there, and the file of a sealed ledger is not in it.
``damaged``: bytes are not those that were written, and the messages cannot be read.
``catalogue``: the messages are whole, but the catalogue's facts about them are wrong or missing.
``spare``: one of two copies of a footer is corrupt, and the other is used. ``orphan``: a file that the catalogue does
not know.
"""

HARMLESS: tuple[FaultKind, ...] = ("spare", "orphan")
"""Faults that do not prevent any message from being found and read."""

Progress = Callable[[int, int], None]
"""Called with the number of finished pieces and the number of all pieces."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a topic.

    Attributes
    ----------
    kind
        As of `FaultKind`.
    text
        The fault, in a sentence.
    ledger, entry
        Place of the fault; None if it concerns no ledger, or no single entry. For a row group, its first entry.
    messages
        How many messages cannot be read because of it.
    file
        Full name of the affected file.
    row_group
        Number of the affected row group of the file, if there is one.
    """

    kind: FaultKind
    text: str
    ledger: int | None = None
    entry: int | None = None
    messages: int = 0
    file: str | None = None
    row_group: int | None = None


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of a verification.

    Attributes
    ----------
    topic
        Name of the topic.
    deep
        Whether every byte was read.
    ledgers, entries, files, messages
        How many were checked; entries are those of unsealed ledgers.
    lost
        How many messages are recorded as lost, by an earlier repair.
    faults
        The faults, in the order of the ledgers.
    """

    topic: str
    deep: bool
    ledgers: int
    entries: int
    files: int
    messages: int
    lost: int
    faults: tuple[Fault, ...]

    @property
    def is_whole(self) -> bool:
        """Whether every message can be found and read."""
        return all(fault.kind in HARMLESS for fault in self.faults)


@dataclass(frozen=True, slots=True)
class Repaired:
    """The result of a repair."""

    topic: str  # name of the topic
    imported: tuple[int, ...]
    """Ledgers that the catalogue had lost, or described wrongly, and has again from their files."""
    moved: tuple[int, ...]  # ledgers whose files were found elsewhere in the store, and whose paths were corrected
    measured: tuple[int, ...]  # ledgers whose rows in the catalogue were corrected from their messages
    lost: int  # how many messages this repair recorded as lost for good
    faults: tuple[Fault, ...]  # faults after files were imported and moved files were found
    left: tuple[Fault, ...]  # faults that remain

    @property
    def is_whole(self) -> bool:
        """Whether all messages can be found and read, except for those recorded as lost."""
        return all(fault.kind in HARMLESS for fault in self.left)
