"""Runs an ingest of files: finds files, appends the new lines of each together with its position, and follows files."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from waterclock._support import moments
from waterclock._support.quoting import counted, quoted
from waterclock.connection import Database
from waterclock.database.sql_connection import SqlConnection
from waterclock.errors import InvalidArgumentError, NotFoundError, SchemaError, UnavailableError
from waterclock.ingest.local_files.file_rows import FilePosition, FileRows
from waterclock.ingest.local_files.fingerprint import FileKey
from waterclock.ingest.local_files.line_format import LineFormat
from waterclock.ingest.local_files.opened_file import OpenedFile, Piece, open_file
from waterclock.ingest.progress import Event, Tell
from waterclock.ingest.storing.dead_letters import check_dead_letters, check_most_payload, dead_letter_of_line
from waterclock.ingest.storing.encoding import encode_in_pieces
from waterclock.topics.writing.appending import JointAppend

LOOK_EVERY = 1.0
"""Seconds between two checks for new files and lines, which cost a stat each."""

_MOST_OPEN = 100
"""Maximum files kept open between two checks, so that a renamed or deleted one is still read to its end."""

_GONE_AFTER = 60.0
"""Seconds without new lines after which a file without a path is closed: its writer may still have it open."""

_APPEND_PATIENCE = 5.0
_FIRST_PAUSE = 0.2  # s
_LONGEST_PAUSE = 5.0

_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
"""Patterns of the names of rotated files."""

_PIECES_A_LOOK = 64
"""Maximum consecutive pieces of one file before the next file has its turn, if files are followed."""

_BY_COLLECTD = "*/*/*-????-??-??"


@dataclass(frozen=True)
class FilePlan:
    """The plan of an ingest of files."""

    patterns: Sequence[str]  # paths, globs, or for collectd its folder
    topic: str  # the topic that takes the messages
    line_format: LineFormat  # how they are read
    dead_letters: str  # the topic of lines that cannot be mapped
    most_payload: int  # maximum bytes of a payload
    complete: bool = False  # whether a last line without a line end is taken

    def __post_init__(self) -> None:
        check_dead_letters(self.dead_letters, [self.topic])

    def paths(self) -> Iterator[str]:
        """Find the files, oldest first, so that a rotated file comes before the one that follows it."""
        found: dict[str, float] = {}
        for pattern in self.patterns:
            for path in self._matches(pattern):
                if not path.endswith(_COMPRESSED):
                    try:
                        found[path] = Path(path).stat().st_mtime
                    except OSError:
                        found[path] = 0.0  # reported when it is opened
        yield from sorted(found, key=lambda path: (found[path], path))

    def _matches(self, pattern: str) -> list[str]:
        if self.line_format.name == "collectd" and Path(pattern).is_dir():
            pattern = f"{glob.escape(pattern)}/{_BY_COLLECTD}"
        elif Path(pattern).exists() or not glob.has_magic(pattern):
            return [pattern]
        return glob.glob(pattern, recursive=True)  # noqa: PTH207  # a Path has no glob for an absolute pattern


@dataclass
class FileProgress:
    """Counts since the start."""

    files: int = 0  # known files
    # Their appended bytes, and all their bytes.
    bytes: int = 0
    all_bytes: int = 0
    appended: int = 0  # messages that were appended
    dead: int = 0  # lines that could not be mapped
    rejected: int = 0  # messages that the topic rejected, because their times are too far ahead
    is_database_away: bool = False  # whether the last append failed because the database was busy or unavailable


@dataclass
class _Followed:
    """A file that this process reads."""

    key: FileKey
    path: str
    position: FilePosition
    state: tuple[int, int]  # size and time of the last change when it was last found
    is_due: bool = True  # whether it has changed since it was read
    is_gone: bool = False  # whether it has no path any more
    opened: OpenedFile | None = None
    descriptor: int = -1
    read_at: float = field(default_factory=moments.monotonic)
    has_half_line: bool = False


class FileIngest:
    """Appends files to a topic, each message once, and continues where an earlier run ended.

    Parameters
    ----------
    database
        The database of the topic.
    plan
        The plan.
    tell
        Called with each event.
    """

    def __init__(self, database: Database, plan: FilePlan, tell: Tell) -> None:
        self.progress = FileProgress()
        self._backend = database.backend
        self._plan = plan
        self._tell = tell
        largest = self._backend.largest_value // 2
        check_most_payload(plan.most_payload, self._backend.largest_value)
        self._largest = largest
        self._topic = database.topic(plan.topic)
        self._dead_letters = database.create_topic(plan.dead_letters, exist_ok=True)
        self._rows = FileRows(self._backend, self._topic.storage.topic_id)
        self._files: dict[FileKey, _Followed] = {}
        self._unreadable: dict[str, str] = {}
        self._wishes_stop = False

    def stop(self) -> None:
        """Stop after the append under way. Safe in a signal handler."""
        self._wishes_stop = True

    def run(self, *, follow: bool) -> None:
        """Append the files, and if they are followed the lines written to them, until stopped.

        Raises `NotFoundError` if no file is found, and none is followed. Raises `LeaseLostError` if another process
        ingests one of the files. Raises `UnavailableError` if the database is unavailable and files are not followed.
        The next run continues.
        """
        try:
            self._step(follow=follow)
            if not follow:
                self._check_all_read()
            while follow and not self._wishes_stop:
                if not any(file.is_due for file in self._files.values()):
                    moments.sleep(LOOK_EVERY)
                self._step(follow=True)
        finally:
            for file in self._files.values():
                _close(file)
        self._tell(Event("stopped", "stopped" if follow else "done", vars(self.progress)))

    def _check_all_read(self) -> None:
        for file in self._files.values():
            if file.has_half_line and not self._wishes_stop:
                text = (
                    f"{file.path}: its last line has no newline and may be incomplete. The ingest waits for the"
                    " newline. To append the line now, use --complete"
                )
                self._tell(Event("half_line", text, {"path": file.path}, is_warning=True))
        if self._unreadable:
            path, reason = next(iter(self._unreadable.items()))
            more = len(self._unreadable) - 1
            others = f". {counted(more, 'other file')} could not be read either; see above" if more else ""
            raise UnavailableError(f"cannot read {path}: {reason}{others}")
        if not self._files:
            raise NotFoundError(f"no file found for {', '.join(map(quoted, self._plan.patterns))}")

    def _step(self, *, follow: bool) -> None:
        self._find(follow=follow)
        for file in list(self._files.values()):
            if self._wishes_stop:
                return
            if file.is_due or file.is_gone:
                self._read(file, follow=follow)
        self._close_idle()
        self.progress.files = len(self._files)

    def _find(self, *, follow: bool) -> None:
        """Find files that are new, renamed, changed or gone."""
        new: dict[FileKey, _Followed] = {}
        found: set[FileKey] = set()
        is_complete = True
        for path in self._plan.paths():
            try:
                status = os.stat(path)  # noqa: PTH116  # a Path for each file at each look takes longer
                key = FileKey.of(status)
            except (OSError, InvalidArgumentError) as error:
                self._report_unreadable(path, error, follow=follow)
                is_complete = False
                continue
            found.add(key)
            state = status.st_size, status.st_ctime_ns
            known = self._files.get(key)
            if known is None:
                new[key] = _Followed(key, path, FilePosition(), state)
            else:
                known.is_due |= known.state != state
                known.path, known.state = path, state
        if new:
            self._take(new, follow=follow)
        for key, file in list(self._files.items()):
            file.is_gone = is_complete and key not in found  # an unreadable path may lead to it
            if file.is_gone and file.opened is None:
                del self._files[key]
        self.progress.all_bytes = sum(file.state[0] for file in self._files.values())

    def _take(self, new: dict[FileKey, _Followed], *, follow: bool) -> None:
        try:
            positions = self._rows.take({key: file.path for key, file in new.items()})
        except UnavailableError as error:
            if not follow:
                raise
            self._tell_away(error)
            return
        self._tell_back()
        for key, file in new.items():
            file.position = positions[key]
            self.progress.bytes += file.position.offset
            self._files[key] = file

    def _read(self, file: _Followed, *, follow: bool) -> None:
        """Append the new lines of a file."""
        file.is_due = False
        try:
            opened = self._open(file)
            complete = self._plan.complete or (file.is_gone and moments.monotonic() - file.read_at > _GONE_AFTER)
            pieces = 0
            while not self._wishes_stop and (piece := self._next(file, opened, complete=complete)) is not None:
                if not self._append(file, piece, follow=follow):
                    return
                file.read_at = moments.monotonic()
                pieces += 1
                if follow and pieces == _PIECES_A_LOOK:
                    file.is_due = True
                    return
        except (OSError, InvalidArgumentError, SchemaError) as error:
            self._report_unreadable(file.path, error, follow=follow)
            return
        self._unreadable.pop(file.path, None)
        file.has_half_line = opened.size() != file.position.offset
        if file.is_gone and moments.monotonic() - file.read_at > _GONE_AFTER:
            _close(file)

    def _next(self, file: _Followed, opened: OpenedFile, *, complete: bool) -> Piece | None:
        if not opened.still_holds(file.position):
            self._tell(
                Event(
                    "truncated", f"{file.path}: its content was replaced. The ingest reads the file from the beginning"
                )
            )
            self.progress.bytes -= file.position.offset
            file.position = FilePosition()
        piece = opened.read(file.position, complete=complete)
        if piece is not None and not opened.still_holds(file.position):  # truncated and written again meanwhile
            return self._next(file, opened, complete=complete)
        return piece

    def _open(self, file: _Followed) -> OpenedFile:
        if file.opened is not None:
            return file.opened
        descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        if FileKey.of(os.fstat(descriptor)) != file.key:
            os.close(descriptor)
            raise InvalidArgumentError("the file was replaced while it was being opened")
        file.descriptor = descriptor
        file.opened = open_file(descriptor, file.path, self._plan.line_format, self._plan.most_payload)
        return file.opened

    def _append(self, file: _Followed, piece: Piece, *, follow: bool) -> bool:
        """Append a piece with its position; False if it must stop while the database is unavailable."""
        received = self._backend.now_about()
        letters = [dead_letter_of_line(file.path, *bad, received) for bad in piece.bad]
        storage, dead_storage = self._topic.storage, self._dead_letters.storage
        entries = [
            (storage, entry)
            for entry in (
                encode_in_pieces(piece.messages, received, self._largest, storage.ahead_limit())
                if piece.messages
                else ()
            )
        ]
        rejected = sum(len(entry.rejected) for _, entry in entries)
        entries = [(storage, entry) for storage, entry in entries if entry.messages]
        if letters:
            entries += [(dead_storage, entry) for entry in encode_in_pieces(letters, received, self._largest)]

        def write_position(connection: SqlConnection) -> None:
            self._rows.write(connection, file.key, file.path, piece.position, received)

        joint = JointAppend(self._backend)
        pause = _FIRST_PAUSE
        while True:
            try:
                with self._backend.patience(_APPEND_PATIENCE):
                    joint.commit(entries, write_position)
                break
            except UnavailableError as error:
                if not follow:
                    raise
                self._tell_away(error)
                if self._wishes_stop:
                    return False
                moments.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
        self._count(file, piece, rejected)
        return True

    def _count(self, file: _Followed, piece: Piece, rejected: int) -> None:
        progress = self.progress
        self._tell_back()
        progress.bytes += piece.position.offset - file.position.offset
        file.position = piece.position
        progress.appended += len(piece.messages) - rejected
        progress.rejected += rejected
        progress.dead += len(piece.bad)
        if piece.bad:
            *others, last = piece.bad
            became = f"and {len(others)} others became dead letters" if others else "became a dead letter"
            text = f"{file.path}: line {last.number} {became}: {last.reason}"
            facts = {"path": file.path, "lines": len(piece.bad)}
            self._tell(Event("dead_letter", text, facts, is_warning=True))
        if rejected:
            text = f"{file.path}: the topic rejected {counted(rejected, 'message')} whose times are too far ahead"
            self._tell(Event("rejected", text, {"path": file.path, "messages": rejected}, is_warning=True))

    def _tell_away(self, error: UnavailableError) -> None:
        if not self.progress.is_database_away:
            self.progress.is_database_away = True
            self._tell(Event("database_away", f"cannot append messages, retrying: {error}", is_warning=True))

    def _tell_back(self) -> None:
        if self.progress.is_database_away:
            self.progress.is_database_away = False
            self._tell(Event("database_back", "appends again"))

    def _close_idle(self) -> None:
        opened = sorted((file for file in self._files.values() if file.opened), key=lambda file: file.read_at)
        for file in opened[:-_MOST_OPEN]:
            _close(file)

    def _report_unreadable(self, path: str, error: Exception, *, follow: bool) -> None:
        """Report a path once; the error that ends a run without following names the first one."""
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        if self._unreadable.get(path) == reason:
            return
        is_first = not self._unreadable
        self._unreadable[path] = reason
        if follow or not is_first:
            self._tell(Event("unreadable", f"{path}: {reason}", {"path": path}, is_warning=True))


def _close(file: _Followed) -> None:
    if file.opened is not None:
        file.opened = None
        os.close(file.descriptor)
