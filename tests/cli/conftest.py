"""The command line, as a person types it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from waterclock.cli.app import DONE, run


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

    def json(self, *words: str, expect: int = DONE) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self(*words, "--json", expect=expect).splitlines()]


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WATERCLOCK_URL", "sqlite:///factory.db")
    return Shell(capsys, tmp_path)
