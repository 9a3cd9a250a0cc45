"""Java's archive of loaded classes: made once for a Java and a Spark, it halves the time that a session takes to start.

A Java that is told of an archive which was cut short dies, so the name of an archive says for which Java and Spark it
was made and how long it is, and it gets that name only when it is whole. Whoever starts a session first has it made in
the background, at the lowest priority, by one process of all that ask. ``WATERCLOCK_CLASS_ARCHIVE=off`` leaves it be.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyspark

from waterclock.spark.java import Java

SWITCH = "WATERCLOCK_CLASS_ARCHIVE"
"""The environment variable that turns archives off: ``off``."""

BUILDS_WITHIN_S = 600
"""After so long an archive that is not ready is given up."""

_MAKER = "waterclock.spark.make_class_archive"
_UNUSED_AFTER_S = 30 * 86_400
_NO_PLACE = (OSError, RuntimeError)  # the latter: nobody knows where this user's home is
QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""Has Java say nothing of the hundreds of classes that cannot be in an archive."""

_USED = f"-Xshare:auto {QUIET} -XX:SharedArchiveFile='{{}}'"


def archive_options(java: Java) -> str:
    """Give Java's options for the archive that fits; an empty text where there is none."""
    try:
        archive = _find(java)
    except _NO_PLACE:
        archive = None
    return "" if archive is None else _USED.format(archive)


def build_in_background(java: Java) -> None:
    """Have the archive made unless it is there, being made, impossible or unwanted. Never an error."""
    try:
        if not _is_wanted() or _find(java) is not None or _failure(java).exists() or not _take_turn(java):
            return
        subprocess.Popen(
            [sys.executable, "-m", _MAKER],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # what ends the caller's terminal or test need not end this
        )
    except _NO_PLACE:
        return  # nowhere to keep it: sessions start as they did


def build(java: Java, dump: Callable[[Path], object]) -> Path | None:
    """Make the archive, and give its place; None where that fails.

    Parameters
    ----------
    dump
        Has Java write an archive to a path. Where it does not, nobody tries again with this Java.
    """
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"{_key(java)}.{secrets.token_hex(4)}.part"
    try:
        dump(unfinished)
        if not unfinished.exists():
            _failure(java).touch()
            return None
        archive = folder / f"{_key(java)}-{unfinished.stat().st_size}.jsa"
        unfinished.replace(archive)
        _remove_unused(folder)
        return archive
    finally:
        unfinished.unlink(missing_ok=True)
        _turn(java).unlink(missing_ok=True)


def _find(java: Java) -> Path | None:
    if not _is_wanted():
        return None
    for path in _folder().glob(f"{_key(java)}-*.jsa"):
        if path.stem.rpartition("-")[2] == str(path.stat().st_size):
            os.utime(path)
            return path
    return None


def _is_wanted() -> bool:
    return os.environ.get(SWITCH, "").lower() != "off"


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "waterclock" / "classes"


def _key(java: Java) -> str:
    """Name what an archive depends on: the Java, and Spark's jars in their order."""
    executable = java.executable.resolve()
    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    parts = [java.version, str(executable), str(executable.stat().st_mtime_ns)]
    for jar in sorted((home / "jars").glob("*.jar")):
        facts = jar.stat()
        parts.append(f"{jar} {facts.st_size} {facts.st_mtime_ns}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _turn(java: Java) -> Path:
    return _folder() / f"{_key(java)}.building"


def _failure(java: Java) -> Path:
    return _folder() / f"{_key(java)}.failed"


def _take_turn(java: Java) -> bool:
    turn = _turn(java)
    turn.parent.mkdir(parents=True, exist_ok=True)
    if turn.exists() and turn.stat().st_mtime < time.time() - BUILDS_WITHIN_S:
        turn.unlink(missing_ok=True)  # whoever had it was killed
    try:
        turn.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _remove_unused(folder: Path) -> None:
    for path in folder.iterdir():
        if path.stat().st_mtime < time.time() - _UNUSED_AFTER_S:
            path.unlink(missing_ok=True)
