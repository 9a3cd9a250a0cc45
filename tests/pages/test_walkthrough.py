"""The walkthrough names the functions that a call passes and the statements that it sends, in their order."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.sql.recording import recorded

import waterclock
from waterclock import Database, Message
from waterclock.time import to_time

SOURCES = Path(waterclock.__file__).parent
PAGE = (Path(__file__).parents[2] / "docs" / "walkthrough.md").read_text()
WARM = 5
"""Calls after which statements are compiled and caches are full."""


@dataclass(frozen=True)
class Hop:
    file: str
    function: str


@dataclass(frozen=True)
class Statement:
    start: str


def hops_of(title: str) -> list[Hop | Statement]:
    [chapter] = [part for part in PAGE.split("\n## ") if part.startswith(f"{title}\n")]
    found = re.finditer(r"^\d+\. `([\w/]+\.py)` `([\w.]+)`|Sends `([^`]+)`", chapter, re.MULTILINE)
    return [Statement(hop[3]) if hop[3] else Hop(hop[1], hop[2]) for hop in found]


def traced(call: Callable[[], Any]) -> list[Hop | Statement]:
    """Record the functions of ours that a call enters, and the statements it sends."""
    seen: list[Hop | Statement] = []
    with recorded() as statements:

        def note(frame: FrameType, event: str, _: Any) -> None:
            take_statements()
            file = Path(frame.f_code.co_filename)
            if event == "call" and file.is_relative_to(SOURCES):
                seen.append(Hop(file.relative_to(SOURCES).as_posix(), frame.f_code.co_qualname))

        taken = 0

        def take_statements() -> None:
            nonlocal taken
            seen.extend(Statement(" ".join(text.split())) for text in statements[taken:])
            taken = len(statements)

        sys.setprofile(note)
        try:
            call()
        finally:
            sys.setprofile(None)
        take_statements()
    return seen


def missing(expected: list[Hop | Statement], seen: Iterator[Hop | Statement]) -> Hop | Statement | None:
    """Return the first expected step that does not come in its place."""
    for step in expected:
        if not any(_agree(step, each) for each in seen):
            return step
    return None


def _agree(step: Hop | Statement, each: Hop | Statement) -> bool:
    if isinstance(step, Statement):
        return isinstance(each, Statement) and each.start.startswith(step.start)
    return step == each


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_append_takes_the_steps_of_the_walkthrough(database: Database) -> None:
    topic = database.create_topic("telemetry")
    message = Message("press-01", "load", to_time("2026-07-01T12:00:00Z"), b"17")
    for _ in range(WARM):
        topic.append([message])
    assert missing(hops_of("Append one message"), iter(traced(lambda: topic.append([message])))) is None


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_grouped_receive_takes_the_steps_of_the_walkthrough(database: Database) -> None:
    table = database.create_table("orders", groups="sequenced", payload="text")
    for _ in range(WARM):
        table.put("x", group="ada")
        for delivery in table.receive():
            delivery.ack()
    table.put("x", group="ada")
    assert missing(hops_of("Receive a message of a group"), iter(traced(table.receive))) is None


def test_each_step_of_a_pipeline_run_exists() -> None:
    hops = hops_of("Run a pipeline")
    assert hops
    for hop in hops:
        assert isinstance(hop, Hop)
        tree = ast.parse((SOURCES / hop.file).read_text())
        assert hop.function in set(_functions(tree.body)), hop


def _functions(body: list[ast.stmt], owner: str = "") -> Iterator[str]:
    for each in body:
        if isinstance(each, ast.FunctionDef):
            yield owner + each.name
        elif isinstance(each, ast.ClassDef):
            yield from _functions(each.body, f"{owner}{each.name}.")
