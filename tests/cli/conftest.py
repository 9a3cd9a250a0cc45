"""The command line, as a person types it."""

from __future__ import annotations

import json
import logging
import os
import pty
import shutil
import sys
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from waterclock.cli.app import DONE, run

HOSTILE = "[/var/log/x] [later] :x: \x1b]0;owned\x07\x1b[2J\x9b\u202e\r"
ESCAPED = "[/var/log/x] [later] :x: \\x1b]0;owned\\x07\\x1b[2J\\x9b\\u202e\\r"
FORBIDDEN = ("\x1b]", "\x07", "\x1b[2J", "\x9b", "\u202e", "\r\r")

Terminal = Callable[..., str]


class Shell:
    """Runs commands in this process, as a person would type them."""

    def __init__(self, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self._capsys = capsys
        self.folder = folder
        self.said = ""

    def __call__(self, *words: str, expect: int = DONE) -> str:
        code = run(list(words))
        captured = self._capsys.readouterr()
        self.said = captured.err
        assert code == expect, captured.err + captured.out
        return captured.out

    def filled_by(self, fill: Callable[[Shell], None], kept: Path) -> Shell:
        """Fill the folder with commands, or copy what they left there for an earlier test of the module."""
        if kept.exists():
            shutil.copytree(kept, self.folder, dirs_exist_ok=True)
        else:
            fill(self)
            shutil.copytree(self.folder, kept)
        return self

    def json(self, *words: str, expect: int = DONE) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self(*words, "--json", expect=expect).splitlines()]


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WATERCLOCK_URL", "sqlite:///factory.db")
    return Shell(capsys, tmp_path)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the module's first test keeps a copy of its filled folder."""
    return tmp_path_factory.mktemp("filled") / "folder"


@pytest.fixture
def terminal(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Generator[Terminal]:
    """Run a command of which stdout and stderr are a terminal, and return what the terminal got."""
    monkeypatch.setenv("TERM", "xterm")
    outer, inner = pty.openpty()

    def call(*words: str, expect: int = DONE, columns: int = 1000) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        received: list[bytes] = []

        def read() -> None:
            while not received or b"\x00" not in received[-1]:
                received.append(os.read(outer, 1 << 16))

        reader = threading.Thread(target=read)
        reader.start()
        with open(inner, "w", encoding="utf-8", closefd=False) as stream, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stream)
            patch.setattr(sys, "stderr", stream)
            code = run(list(words))
        os.write(inner, b"\x00")
        reader.join()
        text = b"".join(received).decode().rstrip("\x00").replace("\r\n", "\n")
        assert code == expect, text
        for sequence in FORBIDDEN:
            assert sequence not in text, (words, text)
        return text

    del shell
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield call
    root.handlers[:] = handlers  # a command that logs takes their place
    root.setLevel(level)
    os.close(outer)
    os.close(inner)
