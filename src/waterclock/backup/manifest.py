"""The manifest of a backup, which lists its files with sizes and checksums. It is written last."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from waterclock._support.durable import durable_file
from waterclock.checksum import checksum
from waterclock.errors import DamagedError, NotFoundError, SchemaError, UnavailableError

NAME = "waterclock-backup.json"  # the manifest's file in the folder of a backup
LEDGERS = "ledgers"  # the folder of the ledger files in that of a backup
FORMAT = 1  # the version of this file's format


class Kept(NamedTuple):
    """A file of a backup."""

    path: str
    """Name of the file: a ledger file under `LEDGERS`, by its name in the catalogue; the database in the folder."""
    size: int  # bytes
    crc: int  # CRC-32 of all bytes


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of a backup."""

    source: str  # the database file that was backed up
    taken_at: int  # the moment that the backup shows, ns
    number: int  # how many backups were made into the folder, including this one
    database: Kept
    ledgers: tuple[Kept, ...]  # the ledger files that its catalogue names
    faults: tuple[str, ...]
    """Faults that the source had already: ledger files that are lost or truncated, each in words."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return self.database.size + sum(kept.size for kept in self.ledgers)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest: from then on this is the folder's backup."""
    body = asdict(manifest)
    with durable_file(folder / NAME) as sink:
        sink.write(json.dumps({"format": FORMAT, "crc": _crc(body), "backup": body}, indent=1).encode())


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of the backup in a folder.

    Raises `NotFoundError` if the folder holds no complete backup. Raises `SchemaError` if a newer version has written
    it. Raises `DamagedError` if it differs from its written form.
    """
    file = folder / NAME
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        raise NotFoundError(
            f"no complete backup found in {folder}: it has no {NAME}, which a backup writes last. If the backup"
            " was interrupted, back up again"
        ) from None
    except OSError as error:
        raise UnavailableError(f"cannot read {file}: {error}") from error
    try:
        return _parse(json.loads(text), file)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError(f"{file} is corrupt: {type(error).__name__}: {error}") from error


def _parse(written: Any, file: Path) -> Manifest:
    if isinstance(written["format"], int) and written["format"] > FORMAT:
        raise SchemaError(
            f"cannot read {file}: its format is {written['format']}, and this version of Waterclock reads format"
            f" {FORMAT}. Update waterclock"
        )
    body = written["backup"]
    if written["format"] != FORMAT or _crc(body) != written["crc"]:
        raise ValueError("the manifest does not match its checksum")
    body["database"] = _kept(body["database"])
    body["ledgers"] = tuple(map(_kept, body["ledgers"]))
    body["faults"] = tuple(body["faults"])
    return Manifest(**body)


def _kept(fields: list[Any]) -> Kept:
    kept = Kept(*fields)
    path = PurePosixPath(kept.path)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"the manifest names {kept.path!r}, which lies outside the folder")
    return kept


def _crc(body: Any) -> int:
    return checksum(json.dumps(body, sort_keys=True).encode())
