"""The archive of classes: made once, whole or not at all, and used where it fits."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pyspark
import pytest

from waterclock.cli.app import DONE, WRONG_USAGE, run
from waterclock.errors import UnavailableError
from waterclock.spark.runtime import class_archive
from waterclock.spark.runtime.class_archive import archive_options, build
from waterclock.spark.runtime.java import Java, find_java

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


def run_java(java: Java, *options: str) -> str:
    """Run a Java that loads some of Spark's classes and ends."""
    command = [java.executable, *options, "-cp", f"{JARS}/*", SUBMIT]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def pretend(path: Path) -> None:
    path.write_text("classes")


def test_java_takes_its_classes_from_the_archive(java: Java) -> None:
    build(java, lambda path: run_java(java, f"-XX:ArchiveClassesAtExit={path}"))
    options = [option.replace("'", "") for option in archive_options(java).split()]
    loaded = run_java(java, *options, "-Xlog:class+load")
    assert f"{SUBMIT} source: shared objects file (top)" in loaded


def test_an_archive_that_java_cannot_use_is_skipped_in_silence(java: Java) -> None:
    build(java, pretend)
    options = [option.replace("'", "") for option in archive_options(java).split()]
    assert run_java(java, *options) == run_java(java)


def test_an_archive_that_was_cut_short_is_not_used(java: Java) -> None:
    archive = build(java, pretend)
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


def test_a_java_that_writes_none_is_an_error_and_leaves_nothing(java: Java, cache: Path) -> None:
    with pytest.raises(UnavailableError, match="did not write a class archive"):
        build(java, lambda _: None)
    assert list(cache.iterdir()) == []


def test_unused_archives_are_removed(java: Java, cache: Path) -> None:
    cache.mkdir(parents=True)
    old = cache / "0123-9.jsa"
    old.touch()
    os.utime(old, (0, 0))
    assert [build(java, pretend)] == list(cache.iterdir())


def test_without_a_cache_folder_sessions_start_without_an_archive_and_making_one_is_an_error(
    java: Java, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert archive_options(java) == ""
    with pytest.raises(UnavailableError, match="XDG_CACHE_HOME"):
        build(java, pretend)


def test_if_switched_off_no_archive_is_used_or_made(
    java: Java, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    build(java, pretend)
    monkeypatch.setenv(class_archive.SWITCH, "off")
    assert archive_options(java) == ""
    assert run(["spark", "prepare"]) == WRONG_USAGE
    assert class_archive.SWITCH in capsys.readouterr().err


def test_the_command_names_the_archive_that_is_there_and_the_doctor_offers_what_is_not(
    java: Java, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor"]) == DONE
    assert "waterclock spark prepare" in capsys.readouterr().out
    archive = build(java, pretend)
    assert run(["spark", "prepare"]) == DONE
    assert str(archive) in capsys.readouterr().err
    assert run(["doctor"]) == DONE
    assert str(archive) in capsys.readouterr().out
