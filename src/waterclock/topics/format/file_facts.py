"""Facts that a ledger file stores about itself, so that a lost catalogue can be rebuilt from the files.

In its Parquet metadata, under the key `KEY`, a file names its topic. For each ledger in it, it also stores the values
of the catalogue's row that cannot be computed from the messages. The footer's checksum covers these facts, and the
messages are compared with the facts before a file is imported.
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
    """A file's facts about one of its ledgers, named as in the catalogue."""

    # Those of the ledger, including messages that are recorded as lost.
    ledger: int
    first_ordinal: int
    entries: int
    messages: int
    closed_at: int
    opened_at: int | None  # when it got its first entry, ns; None if that is not known
    row_groups: Sequence[RowGroup]  # the place of its messages, and their bounds

    @classmethod
    def of_row(cls, row: Mapping[Any, Any], row_groups: Sequence[RowGroup]) -> LedgerFacts:
        """Build them from the catalogue's row."""
        return cls(**{name: row[name] for name in _ROW}, row_groups=row_groups)


class FileFacts(NamedTuple):
    """A file's facts about itself."""

    # Name of its topic, and a number that is unique to it over all databases.
    topic: str
    origin: str
    ledgers: Sequence[LedgerFacts]  # its ledgers, in order


def facts_metadata(topic: str, origin: str, facts: Sequence[LedgerFacts]) -> dict[str, str]:
    """Serialize the facts for the Parquet metadata of the file."""
    listed = [[*each[:-1], row_groups_to_json(each.row_groups)] for each in facts]
    return {KEY: json.dumps({"topic": topic, "origin": origin, "ledgers": listed}, separators=(",", ":"))}


def facts_in(metadata: pq.FileMetaData) -> FileFacts | None:
    """Parse a file's facts; None if it has none.

    Raises `DamagedError` if the facts are invalid.
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
        raise DamagedError(f"the file's list of ledgers is corrupt: {error}") from error
