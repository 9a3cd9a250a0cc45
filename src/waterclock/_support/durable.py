"""Writes local files that, even after a power cut, are either complete or missing."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from waterclock._support.closing import closing_writer


def unfinished(name: str) -> str:
    """Return the name of the file that an interrupted `durable_file` leaves behind."""
    return f"{name}.part"


@contextmanager
def durable_file(path: Path) -> Generator[BinaryIO]:
    """Open a new file for writing; it appears, durable and complete, when the block ends without an error."""
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
    """Create a folder and its parents, so that their names survive a power cut."""
    missing = [folder, *folder.parents]
    missing = missing[: next(i for i, parent in enumerate(missing) if parent.exists())]
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        sync(made.parent)


def sync(path: Path) -> None:
    """Wait until the bytes of a file, or the names in a folder, are on disk.

    After a power cut, a file's name may be lost although its bytes are safe.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
