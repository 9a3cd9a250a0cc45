"""``waterclock backup`` and ``restore``: the commands of the how-to page, their exit codes, and what they refuse."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.backup.conftest import NOW
from tests.backup.contents import messages
from tests.topics.flows import ledger_path

import waterclock as wc
from waterclock.cli.app import DONE, FAILED, INTERRUPTED, WRONG_USAGE, run

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "operation" / "back-up-and-restore.md"
COMMANDS = re.findall(r"```console\n\$ waterclock (.*?)\n```", PAGE.read_text())


def test_the_commands_of_the_page_back_up_check_and_restore(source: wc.Database, tmp_path: Path) -> None:
    assert [command.split()[0] for command in COMMANDS] == ["backup", "restore", "restore"]
    for command in COMMANDS:
        here = command.replace("/srv/factory.db", f"{source.backend.url.database}").replace("/srv", str(tmp_path))
        words = shlex.split(here.replace("/backup", f"{tmp_path}/backup"))
        assert run([*words, "--ledgers", str(tmp_path / ("ledgers" if words[0] == "backup" else "restored"))]) == DONE
    with wc.connect(f"sqlite:///{tmp_path}/restored.db", tmp_path / "restored", clock=lambda: NOW) as copy:
        assert messages(copy) == messages(source)


def test_a_backup_is_replaced_only_with_consent_and_its_faults_are_reported(
    source: wc.Database, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["backup", str(folder), "--url", str(source.backend.url), "--ledgers", source.ledgers, "--json"]
    ledger_path(source.topic("telemetry"), 2).unlink()
    assert run(words) == FAILED
    said = capsys.readouterr()
    facts = json.loads(said.out)
    assert (facts["ledger_files"], facts["copied"], facts["faults"]) == (1, 1, 1)
    assert "which the catalogue names, is missing" in said.err
    assert run(words) == WRONG_USAGE
    assert "this would replace the backup of 20" in capsys.readouterr().err
    assert run([*words, "--yes"]) == FAILED
    assert json.loads(capsys.readouterr().out)["copied"] == 0
    assert run(["restore", str(folder), "--dry-run"]) == DONE
    assert "which the catalogue names, is missing" in capsys.readouterr().err


def test_ctrl_c_ends_a_command_with_one_line(
    source: wc.Database, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wc.Database, "backup", Mock(side_effect=KeyboardInterrupt))
    assert run(["backup", str(folder), "--url", str(source.backend.url)]) == INTERRUPTED
    assert capsys.readouterr() == ("", "waterclock: interrupted\n")


def test_usage_errors_are_reported(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WATERCLOCK_URL", raising=False)
    for words, text in {
        "backup there": "no database given",
        "backup there --url postgresql://u:secret@db/x": "pg_dump",
        "backup there --url nonsense": "url must be a database URL",
        "restore": "source is missing",
        "restore --new-identity --url sqlite:///x.db": "ledgers is missing",
        "restore there --url postgresql://u:secret@db/x": "pg_dump",
    }.items():
        assert run(words.split()) == WRONG_USAGE
        said = capsys.readouterr().err
        assert text in said
        assert "secret" not in said
    assert run(["restore", str(folder), "--url", "sqlite:///x.db"]) == FAILED
    assert "no complete backup" in capsys.readouterr().err
