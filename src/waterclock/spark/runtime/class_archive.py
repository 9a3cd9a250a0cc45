"""Manages Java's archive of loaded classes, which halves the start time of a session.

Each version of Java and Spark needs its own archive. Java crashes if it loads a truncated archive. So an archive is
named after its Java, its Spark and its length, and gets that name only when it is complete. Only ``waterclock spark
prepare`` builds it, because building takes a minute of CPU time and some 200 MB of the user's cache folder. With
``WATERCLOCK_CLASS_ARCHIVE=off``, sessions start without an archive.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from waterclock.errors import UnavailableError
from waterclock.spark.runtime.java import Java

SWITCH = "WATERCLOCK_CLASS_ARCHIVE"
"""The environment variable that disables archives: ``off``."""

BUILDS_WITHIN_S = 600
"""Time after which an unfinished archive is abandoned."""

_UNUSED_AFTER_S = 30 * 86_400
_NO_PLACE = (OSError, RuntimeError)  # a RuntimeError: this user has no home
QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""Stops Java's messages about the hundreds of classes that cannot be in an archive."""

_USED = f"-Xshare:auto {QUIET} -XX:SharedArchiveFile='{{}}'"


def archive_options(java: Java) -> str:
    """Return Java's options for the matching archive; an empty text if it is missing or disabled."""
    archive = find_archive(java) if is_wanted() else None
    return "" if archive is None else _USED.format(archive)


def find_archive(java: Java) -> Path | None:
    """Find the matching archive, and mark it as used; None if missing."""
    try:
        for path in archive_folder().glob(f"{_key(java)}-*.jsa"):
            if path.stem.rpartition("-")[2] == str(path.stat().st_size):
                os.utime(path)
                return path
    except _NO_PLACE:
        return None
    return None


def build(java: Java, dump: Callable[[Path], object]) -> Path:
    """Build the archive, and return its path.

    Parameters
    ----------
    dump
        Has Java write an archive to a path.

    Raises
    ------
    UnavailableError
        If Java writes none, or there is no place for it.
    """
    try:
        folder = archive_folder()
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / f"{_key(java)}.{secrets.token_hex(4)}.part"
        try:
            dump(unfinished)
            if not unfinished.exists():
                raise UnavailableError(f"{java} did not write a class archive. Spark also starts without an archive")
            archive = folder / f"{_key(java)}-{unfinished.stat().st_size}.jsa"
            unfinished.replace(archive)
            _remove_unused(folder)
        finally:
            unfinished.unlink(missing_ok=True)
    except _NO_PLACE as error:
        raise UnavailableError(
            f"cannot store the class archive: {error}. Set XDG_CACHE_HOME to a writable folder"
        ) from error
    return archive


def is_wanted() -> bool:
    """Return whether sessions may start with an archive."""
    return os.environ.get(SWITCH, "").lower() != "off"


def archive_folder() -> Path:
    """Name the folder of the archives, in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "waterclock" / "classes"


def _key(java: Java) -> str:
    """Compute a name from everything that an archive depends on: the Java, and Spark's jars in their order."""
    executable = java.executable.resolve()
    home = Path(os.environ.get("SPARK_HOME") or _pyspark_folder())
    parts = [java.version, str(executable), str(executable.stat().st_mtime_ns)]
    for jar in sorted((home / "jars").glob("*.jar")):
        facts = jar.stat()
        parts.append(f"{jar} {facts.st_size} {facts.st_mtime_ns}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _pyspark_folder() -> str:
    # Without importing it, which takes longer than the rest of `waterclock doctor`.
    spec = find_spec("pyspark")
    places = [] if spec is None else spec.submodule_search_locations or []
    return places[0] if places else ""


def _remove_unused(folder: Path) -> None:
    for path in folder.iterdir():
        if path.stat().st_mtime < time.time() - _UNUSED_AFTER_S:
            path.unlink(missing_ok=True)
