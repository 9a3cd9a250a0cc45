"""The glossary outranks the code: no name, column or heading of a docstring is a word that it calls by another."""

from __future__ import annotations

import ast
import re
from collections.abc import Generator, Iterable
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import sqlalchemy as sa

import waterclock as wc
from waterclock.database.schema import ingest_catalogue, table_catalogue, topic_catalogue, upkeep_catalogue
from waterclock.database.schema.catalogue import metadata

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "waterclock"
ROW = re.compile(r"^\| \*\*(?P<term>[^*]+)\*\* \|.*\| (?P<never>[^|]*)\|$", re.MULTILINE)

ALLOWED = {
    "ingest": {"keepalive"},  # of MQTT
    "spark/reading/columns.py": {"timestamp"},  # a type of Spark's
    "spark/reading/topic_read_options.py": {"timestamp"},  # Spark's names of options
    "time_columns.py": {"timestamp"},  # a type of Arrow's
    "database/engines/postgresql.py": {"timestamp"},  # PostgreSQL's functions
    "spark/streaming": {"watermark"},  # Spark's own, by which it tells the time
    "database/migrations": {"attendance", "timestamp"},  # what was done under a former name was done so
}
"""Words that mean something else there, which is not ours to name."""

TITLES = ("Optimize finding message by timestamp",)
"""Titles of documents, which docstrings name."""

ONE_MEANING = {
    "epoch": (
        (
            "tables",
            "cli",
            "archive_to_topic.py",
            "spark/reading/table_read_options.py",
            "spark/reading/table_stream.py",
        ),
        {"producer_epoch", "reader_epoch", "unix_epoch"},
    ),
    "settle": (("tables",), set[str]()),
    "partition": (("tables", "spark"), set[str]()),  # in Spark's interface they are Spark's
    "entry": (("topics", "spark", "demo", "database", "message.py", "errors.py"), set[str]()),
}
"""Words that mean one thing only: where their names may be, and which longer names are other words."""

LEVELS = ("debug", "info", "warning", "error", "exception")

NOT_OURS = {
    "topics/topic.py": {"epoch"},  # the keyword of `append`, which callers write
    "topics/reading/subscription_rows.py": {"epoch"},  # an attribute that callers read
    "aio/deliveries.py": {"epoch"},  # an attribute that callers read
}


@cache
def refused() -> dict[tuple[str, ...], str]:
    """Read the glossary: the words that are never used, and the term that stands for each."""
    found: dict[tuple[str, ...], str] = {}
    for row in ROW.finditer((ROOT / "docs" / "glossary.md").read_text()):
        for word in re.findall(r"`([^`]+)`", row["never"]):
            found[tuple(word.split())] = row["term"]
    return found


@cache
def words_of(name: str) -> tuple[str, ...]:
    """Split a name or a text into words in lower case, each in the singular."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name.replace("-", " "))
    return tuple(re.sub("ies$", "y", word.lower()).removesuffix("s") for word in words)


def has(words: tuple[str, ...], word: Iterable[str]) -> bool:
    """Say whether a word, or several that follow each other, are among some."""
    wanted = words_of(" ".join(word))
    if wanted[0] not in words:
        return False
    return any(words[at : at + len(wanted)] == wanted for at in range(len(words)))


def names_of(tree: ast.AST) -> Generator[str]:
    """Name what a module defines: classes, functions, parameters, attributes and constants."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.arg():
                yield node.arg
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr
            case _:
                pass
        if isinstance(node, ast.Module | ast.ClassDef):
            for statement in node.body:
                targets = [statement.target] if isinstance(statement, ast.AnnAssign) else []
                targets += statement.targets if isinstance(statement, ast.Assign) else []
                yield from (target.id for target in targets if isinstance(target, ast.Name))


def headings_of(tree: ast.AST) -> Generator[str]:
    """Give the first line of each docstring, and the terms that it explains."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            lines = (ast.get_docstring(node) or "").split("\n")
            yield lines[0]
            for line, following in pairwise(lines):
                if line[:1].isalpha() and following.startswith("    "):
                    yield line


def texts_of(tree: ast.AST, *, all_of_them: bool) -> Generator[str]:
    """Give the lines that people read: of errors and logs, or all, as in a command, whose docstring is its help."""
    for node in ast.walk(tree):
        logs = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS
        if all_of_them or logs or isinstance(node, ast.Raise):
            for text in [node] if all_of_them else ast.walk(node):
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    yield from text.value.split("\n")


@cache
def modules() -> dict[str, tuple[list[str], list[str]]]:
    """Read every module: its names, its folder's among them, and its headings."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(file.read_text())
        found[str(file.relative_to(SOURCE))] = (
            sorted({file.stem, file.parent.name, *names_of(tree)}),
            list(headings_of(tree)),
        )
    return found


def columns(url: str) -> Generator[tuple[str, str]]:
    """Name the tables of the catalogue, those of messages, and their columns."""
    known = {
        ingest_catalogue.ingest_sessions,
        table_catalogue.message_tables,
        topic_catalogue.topics,
        upkeep_catalogue.upkeep,
    }
    assert known <= set(metadata.tables.values())
    yield from ((table.name, column.name) for table in metadata.tables.values() for column in table.columns)
    with wc.connect(url) as database:
        database.create_table("orders", groups="sequenced", dead_letter="dead")
        with database.backend.engine.connect() as connection:
            for name in ("orders", "dead"):
                yield from ((name, column["name"]) for column in sa.inspect(connection).get_columns(name))


@cache
def refused_in(text: str) -> list[tuple[str, str]]:
    """Give the refused words in a text, each with the glossary's own."""
    for title in TITLES:
        text = text.replace(title, "")
    words = words_of(text)
    return [(" ".join(word), term) for word, term in refused().items() if has(words, word)]


def faults(where: str, text: str) -> list[str]:
    """Say which words of a name or a heading the glossary calls by another."""
    allowed = {word for place, words in ALLOWED.items() if where.startswith(place) for word in words}
    return [
        f"{where}: {text!r}: the glossary says {term!r}, not {word!r}"
        for word, term in refused_in(text)
        if word not in allowed
    ]


def test_the_glossary_names_refused_words() -> None:
    assert len(refused()) > 20
    assert refused()["presence",] == "heartbeat"


def test_no_name_is_a_word_that_the_glossary_calls_by_another() -> None:
    found = [fault for where, (names, _) in modules().items() for name in names for fault in faults(where, name)]
    assert found == []


def test_no_heading_of_a_docstring_is_a_word_that_the_glossary_calls_by_another() -> None:
    assert [fault for where, (_, texts) in modules().items() for text in texts for fault in faults(where, text)] == []


def test_no_error_log_or_command_says_a_word_that_the_glossary_calls_by_another() -> None:
    found: list[str] = []
    for file in sorted(SOURCE.rglob("*.py")):
        where = str(file.relative_to(SOURCE))
        tree = ast.parse(file.read_text())
        for text in texts_of(tree, all_of_them=where.startswith("cli/")):
            found += faults(where, text)
    assert found == []


def test_no_column_is_a_word_that_the_glossary_calls_by_another(sqlite_url: str) -> None:
    assert [
        fault for table, column in columns(sqlite_url) for name in (table, column) for fault in faults(table, name)
    ] == []


@pytest.mark.parametrize("word", ONE_MEANING)
def test_a_word_with_one_meaning_names_nothing_elsewhere(word: str) -> None:
    places, other_words = ONE_MEANING[word]
    found = [
        f"{where}: {name}"
        for where, (names, _) in modules().items()
        if not where.startswith(places)
        for name in names
        if has(words_of(name), [word])
        and not any(has(words_of(name), other.split("_")) for other in other_words)
        and name not in NOT_OURS.get(where, ())
    ]
    assert found == []


def test_what_is_looked_for_is_found() -> None:
    tree = ast.parse('class StayPresence:\n    """A sign of life."""\n    def beat(self, poison): self.DLQHeart = 1\n')
    assert [name for name in names_of(tree) if faults("x", name)] == ["StayPresence", "poison", "DLQHeart"]
    assert [text for text in headings_of(tree) if faults("x", text)] == ["A sign of life."]
    tree = ast.parse('def ack():\n    """Ack.\n\n    Or requeue."""\n    raise Error(f"poison: {1}")\n')
    assert [text for text in texts_of(tree, all_of_them=False) if faults("x", text)] == ["poison: "]
    assert sum(map(bool, (faults("x", text) for text in texts_of(tree, all_of_them=True)))) == 2
    assert faults("x", "waterclock_attendance")
    assert not faults("x", "is_heartbeat_represented")
