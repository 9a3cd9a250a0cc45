"""Local files that are there, whole and safe from a power cut, or not at all."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from waterclock._support.closing import closing_writer


def unfinished(name: str) -> str:
    """Name what an interrupted `durable_file` leaves behind."""
    return f"{name}.part"


@contextmanager
def durable_file(path: Path) -> Generator[BinaryIO]:
    """Open a new file for writing; it is there, durable and whole, when the block ends without an error."""
    make_folder(path.parent)
    part = Path(unfinished(str(path)))
    try:
        with closing_writer(part.open("wb")) as sink:
            yield sink
            sink.flush()
            os.fsync(sink.fileno())
        part.rename(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync(path.parent)


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, so that a power cut forgets none of their names."""
    missing = [folder, *folder.parents]
    missing = missing[: next(i for i, parent in enumerate(missing) if parent.exists())]
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        sync(made.parent)


def sync(path: Path) -> None:
    """Wait until the bytes of a file, or the names in a folder, are on the disk.

    A power cut may forget the name of a file whose bytes are safe.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
