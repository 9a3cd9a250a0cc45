"""Shared by tests of topics: messages with given times, files that count their reads, lost files."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyarrow import fs

from waterclock.message import Message, Position
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.store.ledger_files import MARKER, LedgerFiles
from waterclock.topics.topic import Topic

FORMS = [
    pytest.param("open", marks=pytest.mark.one_database),
    "mixed",
    pytest.param("sealed", marks=pytest.mark.one_database),
    "compacted",
]
"""How ledgers may be kept: what is in rows alone, or in files alone, is read as it is where there is both."""


def pseudo_random(seed: int) -> random.Random:
    """Give the same numbers at each run."""
    return random.Random(seed)  # noqa: S311  # nothing is to be kept secret


def published(times: Iterable[int]) -> list[Message]:
    """Make a message for each time, received when it was published; its payload tells which of its entry it is."""
    return [
        Message("press", "load", 7, str(i).encode(), publish_time=time, receive_time=time)
        for i, time in enumerate(times)
    ]


def append_ledgers(topic: Topic, ledgers: Iterable[Iterable[Iterable[int]]]) -> list[tuple[int, Position]]:
    """Append ledgers of entries of publish times, rolling in between; give each time with its position."""
    placed: list[tuple[int, Position]] = []
    for number, ledger in enumerate(ledgers):
        if number:
            topic.roll()
        for entry in ledger:
            times = list(entry)
            first = topic.append(published(times)).first
            assert first is not None
            placed += [(time, first._replace(index=i)) for i, time in enumerate(times)]
    return placed


def first_at_or_after(placed: Iterable[tuple[int, Position]], time: int) -> Position | None:
    """Say by brute force what `find` has to answer."""
    return next((position for at, position in placed if at >= time), None)


def ledger_path(topic: Topic, ledger: int) -> Path:
    """Give the file of a sealed ledger."""
    return Path(next(str(info.file) for info in topic.ledgers() if info.ledger == ledger))


def ledger_files_in(root: Path) -> set[Path]:
    """Give all files of a store, finished or not, but its marker."""
    return {path for path in root.rglob("*") if path.is_file() and path.name != MARKER}


class CountingFiles(fs.FileSystemHandler):
    """A filesystem over a local folder that behaves as an object store, and notes every read of an open file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.local = fs.LocalFileSystem()
        self.reads: list[tuple[int, int]] = []
        self.opened: list[str] = []

    def get_type_name(self) -> str:
        return "counting"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        return [self.local.get_file_info(str(self.folder / path)) for path in paths]

    def delete_file(self, path: str) -> None:
        self.local.delete_file(str(self.folder / path))

    def open_input_stream(self, path: str) -> Any:
        return self.local.open_input_stream(str(self.folder / path))

    def open_input_file(self, path: str) -> Any:
        self.opened.append(path)
        return pa.PythonFile(_CountedFile(self, (self.folder / path).open("rb")), mode="r")

    def open_output_stream(self, path: str, metadata: object) -> Any:  # noqa: ARG002  # the interface hands it over
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        return self.local.open_output_stream(str(self.folder / path))

    def _refuse(self, *_: object) -> Any:
        raise OSError("an object store cannot do that")

    get_file_info_selector = create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    move = copy_file = open_append_stream = _refuse


class _CountedFile:
    def __init__(self, files: CountingFiles, file: Any) -> None:
        self._files = files
        self._file = file

    def read(self, size: int = -1) -> bytes:
        self._files.reads.append((self._file.tell(), size))
        return self._file.read(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def on_counting_files(topic: Topic, folder: Path) -> tuple[Topic, CountingFiles]:
    """Give the same topic with its ledger files on a counting filesystem."""
    handler = CountingFiles(folder)
    files = LedgerFiles("store", fs.PyFileSystem(handler))
    old = topic.storage
    return Topic(Storage(old.topic_id, old.name, old.backend, files)), handler


class CountedStatements:
    """Notes the SELECTs of an engine, for ``with``."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self.selects: list[str] = []

    def _note(self, _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.lstrip().upper().startswith(("SELECT", "WITH")):
            self.selects.append(statement)

    def __enter__(self) -> CountedStatements:
        sa.event.listen(self._engine, "before_cursor_execute", self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sa.event.remove(self._engine, "before_cursor_execute", self._note)


def bring_to(topic: Topic, form: str) -> None:
    """Leave a topic's ledgers as they are (``"open"``), or seal those that are closed, or all, or join their files."""
    if form in ("sealed", "compacted"):
        topic.roll()
    if form != "open":
        topic.seal()
    if form == "compacted":
        assert topic.compact() > 0
