"""``waterclock token``."""

from __future__ import annotations

from tests.cli.conftest import Shell

from waterclock.cli.app import FAILED, WRONG_USAGE


def test_a_token_is_printed_once(shell: Shell) -> None:
    shell("init")
    [created] = shell.json("token", "add", "grafana", "--read", "topic:t", "--read", "table:*", "--expires", "90d")
    assert created["token"].startswith("wct_")
    assert "Store the token now: it cannot be shown again" in shell.said
    [listed] = shell.json("token", "ls")
    assert listed["rights"] == "read topic:t, read table:*"
    assert listed["expired"] is False
    assert created["token"].rpartition("_")[2] not in shell("token", "ls")
    shell("token", "rm", "grafana")
    assert shell.json("token", "ls") == []


def test_a_wrong_right_creates_no_token(shell: Shell) -> None:
    shell("init")
    shell("token", "add", "grafana", expect=WRONG_USAGE)
    shell("token", "add", "grafana", "--put", "topic:t", expect=WRONG_USAGE)
    assert "the verb of a topic must be one of" in shell.said
    assert shell.json("token", "ls") == []
    shell("token", "rm", "grafana", expect=FAILED)
