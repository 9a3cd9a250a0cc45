"""What a ledger file says of itself, so that a lost catalogue can be made again from the files.

Under the key `KEY` of its Parquet metadata, a file names its topic and has, for each ledger in it, what the catalogue's
row has that the messages do not tell. The footer's checksum guards it, and the messages are compared with it before a
file is imported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from waterclock.errors import DamagedError
from waterclock.topics.format.row_groups import RowGroup, row_groups_from_json, row_groups_to_json

KEY = "waterclock"

_ROW = ("ledger", "first_ordinal", "entries", "messages", "closed_at", "opened_at")


class LedgerFacts(NamedTuple):
    """What a file says of one of its ledgers; the names are those of the catalogue.

    Attributes
    ----------
    ledger, first_ordinal, entries, messages, closed_at
        Of the ledger, messages that are recorded as lost included.
    opened_at
        When it got its first entry, ns; None if that is not known.
    row_groups
        The place of its messages, and their bounds.
    """

    ledger: int
    first_ordinal: int
    entries: int
    messages: int
    closed_at: int
    opened_at: int | None
    row_groups: Sequence[RowGroup]

    @classmethod
    def of_row(cls, row: Mapping[Any, Any], row_groups: Sequence[RowGroup]) -> LedgerFacts:
        """Take them from the catalogue's row."""
        return cls(**{name: row[name] for name in _ROW}, row_groups=row_groups)


class FileFacts(NamedTuple):
    """What a file says of itself.

    Attributes
    ----------
    topic, origin
        Name of its topic, and the number that no other topic has, in any database.
    ledgers
        Its ledgers, in order.
    """

    topic: str
    origin: str
    ledgers: Sequence[LedgerFacts]


def facts_metadata(topic: str, origin: str, facts: Sequence[LedgerFacts]) -> dict[str, str]:
    """Write what a file says of itself, as Parquet's metadata of the file takes it."""
    listed = [[*each[:-1], row_groups_to_json(each.row_groups)] for each in facts]
    return {KEY: json.dumps({"topic": topic, "origin": origin, "ledgers": listed}, separators=(",", ":"))}


def facts_in(metadata: pq.FileMetaData) -> FileFacts | None:
    """Read what a file says of itself; None if it says nothing.

    Raises
    ------
    DamagedError
        If it says something that no ledger file says.
    """
    text = (metadata.metadata or {}).get(KEY.encode())
    if text is None:
        return None
    try:
        said = json.loads(text)
        listed = [
            LedgerFacts(**dict(zip(_ROW, counts, strict=True)), row_groups=row_groups_from_json(groups))
            for *counts, groups in said["ledgers"]
        ]
        return FileFacts(said["topic"], said["origin"], listed)
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedError(f"the file's list of ledgers is damaged: {error}") from error
