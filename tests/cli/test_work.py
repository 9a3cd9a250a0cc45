"""What ``waterclock work`` refuses; tests/work runs it."""

from __future__ import annotations

import pytest
from tests.cli.conftest import Shell

from waterclock.cli.app import WRONG_USAGE


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["shop"], "'shop' is not MODULE:NAME"),
        (["nowhere:handle"], "there is no module 'nowhere'"),
        (["tests.work.shop:nothing"], "module 'tests.work.shop' has no 'nothing'"),
        (["tests.work.shop:handle", "tests.work.shop:hold"], "'orders' has two handlers"),
        (["tests.work.shop:handle", "--concurrency", "0"], "concurrency"),
    ],
)
def test_what_cannot_be_meant_is_wrong_usage(shell: Shell, words: list[str], said: str) -> None:
    shell("table", "add", "orders")
    shell("work", *words, "--table", "orders", expect=WRONG_USAGE)
    assert said in shell.said.replace("\n", " ")


def test_a_handler_without_a_table_is_wrong_usage(shell: Shell) -> None:
    shell("table", "add", "orders")
    shell("work", "tests.work.shop:handle", expect=WRONG_USAGE)
    assert "names none; write tests.work.shop:handle@TABLE" in shell.said.replace("\n", " ")
