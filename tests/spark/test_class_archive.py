"""The archive of classes: made once, whole or not at all, and used where it fits."""

from __future__ import annotations

import os
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

import pyspark
import pytest

from waterclock.spark import class_archive
from waterclock.spark.class_archive import archive_options, build, build_in_background
from waterclock.spark.java import Java, find_java

JARS = Path(pyspark.__file__).parent / "jars"
SUBMIT = "org.apache.spark.launcher.Main"


@pytest.fixture
def java() -> Java:
    return find_java()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(class_archive.SWITCH, raising=False)
    return tmp_path / "waterclock" / "classes"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What was started in the background; nothing really is."""
    commands: list[list[str]] = []
    monkeypatch.setattr(class_archive.subprocess, "Popen", lambda command, **_: commands.append(command))
    return commands


def run_java(java: Java, *options: str) -> str:
    """Run a Java that loads some of Spark's classes and ends."""
    command = [java.executable, *options, "-cp", f"{JARS}/*", SUBMIT]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def pretend(path: Path) -> None:
    path.write_text("classes")


def test_java_takes_its_classes_from_the_archive(java: Java) -> None:
    assert build(java, lambda path: run_java(java, f"-XX:ArchiveClassesAtExit={path}")) is not None
    options = [option.replace("'", "") for option in archive_options(java).split()]
    loaded = run_java(java, *options, "-Xlog:class+load")
    assert f"{SUBMIT} source: shared objects file (top)" in loaded


def test_an_archive_that_java_cannot_use_is_passed_over_in_silence(java: Java) -> None:
    build(java, pretend)
    options = [option.replace("'", "") for option in archive_options(java).split()]
    assert run_java(java, *options) == run_java(java)


def test_an_archive_that_was_cut_short_is_not_used(java: Java) -> None:
    archive = build(java, pretend)
    assert archive is not None
    assert str(archive) in archive_options(java)
    archive.write_text("cla")
    assert archive_options(java) == ""


def test_another_spark_needs_another_archive(java: Java, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    build(java, pretend)
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    assert archive_options(java) == ""
    build(java, pretend)
    (tmp_path / "spark" / "jars" / "further.jar").touch()
    assert archive_options(java) == ""


def test_of_many_who_want_it_one_makes_it(java: Java, started: list[list[str]]) -> None:
    for _ in range(3):
        build_in_background(java)
    [command] = started
    assert find_spec(command[2]) is not None
    build(java, pretend)
    build_in_background(java)
    assert len(started) == 1


def test_after_a_maker_that_was_killed_another_one_makes_it(java: Java, started: list[list[str]], cache: Path) -> None:
    build_in_background(java)
    (turn,) = cache.iterdir()
    long_ago = time.time() - 3_600
    os.utime(turn, (long_ago, long_ago))
    build_in_background(java)
    assert len(started) == 2


def test_a_java_that_makes_none_is_not_asked_again(java: Java, started: list[list[str]]) -> None:
    assert build(java, lambda _: None) is None
    build_in_background(java)
    assert started == []


def test_archives_that_nobody_uses_are_removed(java: Java, cache: Path) -> None:
    cache.mkdir(parents=True)
    old = cache / "0123-9.jsa"
    old.touch()
    os.utime(old, (0, 0))
    assert [build(java, pretend)] == list(cache.iterdir())


def test_where_it_is_unwanted_or_there_is_no_place_nothing_happens(
    java: Java, started: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    build_in_background(java)
    assert archive_options(java) == ""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(class_archive.SWITCH, "off")
    build_in_background(java)
    assert archive_options(java) == ""
    assert started == []
