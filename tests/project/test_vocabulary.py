"""The glossary outranks the code: no name or column uses a word for which the glossary has another term."""

from __future__ import annotations

import ast
import re
from collections.abc import Generator, Iterable
from functools import cache
from pathlib import Path

import pytest
import sqlalchemy as sa

import waterclock as wc
from waterclock.database.schema import (
    ingest_catalogue,
    process_catalogue,
    server_catalogue,
    table_catalogue,
    topic_catalogue,
    upkeep_catalogue,
)
from waterclock.database.schema.catalogue import metadata

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "waterclock"
ROW = re.compile(r"^\| \*\*(?P<term>[^*]+)\*\* \|.*\| (?P<never>[^|]*)\|$", re.MULTILINE)

ALLOWED = {
    "ingest": {"keepalive"},  # of MQTT
    "spark/reading/columns.py": {"timestamp"},  # a type of Spark's
    "spark/reading/topic_read_options.py": {"timestamp"},  # Spark's names of options
    "time_columns.py": {"timestamp"},  # a type of Arrow's
    "database/engines/postgresql.py": {"timestamp"},  # PostgreSQL's functions
    "columnar/streams": {"watermark"},  # Spark's own, by which it tells the time
    "spark/streaming": {"watermark"},  # likewise
    "database/migrations": {"attendance", "timestamp"},  # what was done under a former name was done so
}
"""Words that mean something else there, which is not ours to name."""

ONE_MEANING = {
    "epoch": (
        (
            "tables",
            "cli",
            "archive_to_topic.py",
            "spark/reading/table_read_options.py",
            "spark/reading/table_stream.py",
            "server/api/messages.py",
        ),
        {"producer_epoch", "reader_epoch", "unix_epoch", "owner_epoch"},
    ),
    "settle": (("tables",), set[str]()),
    "partition": (
        ("tables", "spark", "ingest", "database/schema/ingest_catalogue.py", "topics/upkeep/removing.py"),
        set[str](),
    ),  # in Spark's interface they are Spark's, and Kafka's in an ingest
    "entry": (("topics", "spark", "columnar", "demo", "database", "message.py", "errors.py"), set[str]()),
}
"""Words that mean one thing only: where their names may be, and which longer names are other words."""

NOT_OURS = {
    "topics/writing/producers.py": {"begin_epoch"},  # the producer's epoch
    "topics/topic.py": {"epoch"},  # the keyword of `append`, which callers write
    "topics/finding/subscription_rows.py": {"epoch"},  # an attribute that callers read
    "server/api/topic_messages.py": {"epoch"},  # the producer's epoch, which clients write
    "aio/deliveries.py": {"epoch"},  # an attribute that callers read
    "tracing.py": {"epoch"},  # likewise, of a delivery
}


@cache
def refused() -> dict[tuple[str, ...], str]:
    """Read the glossary: the words that no name may use, and the term to use for each."""
    found: dict[tuple[str, ...], str] = {}
    for row in ROW.finditer((ROOT / "docs" / "glossary.md").read_text()):
        for word in re.findall(r"`([^`]+)`", row["never"]):
            found[tuple(word.split())] = row["term"]
    return found


@cache
def words_of(name: str) -> tuple[str, ...]:
    """Split a name into words in lower case, each in the singular."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name.replace("-", " "))
    return tuple(re.sub("ies$", "y", word.lower()).removesuffix("s") for word in words)


def has(words: tuple[str, ...], word: Iterable[str]) -> bool:
    """Return whether a word, or a sequence of words, occurs."""
    wanted = words_of(" ".join(word))
    if wanted[0] not in words:
        return False
    return any(words[at : at + len(wanted)] == wanted for at in range(len(words)))


def names_of(tree: ast.AST) -> Generator[str]:
    """Yield the names that a module defines: classes, functions, parameters, attributes and constants."""
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


@cache
def modules() -> dict[str, list[str]]:
    """Read the names that every module defines, with those of the file and its folder."""
    return {
        str(file.relative_to(SOURCE)): sorted({file.stem, file.parent.name, *names_of(ast.parse(file.read_text()))})
        for file in sorted(SOURCE.rglob("*.py"))
    }


def columns(url: str) -> Generator[tuple[str, str]]:
    """Yield the tables of the catalogue and of messages, with their columns."""
    known = {
        ingest_catalogue.ingest_sessions,
        process_catalogue.process_reports,
        server_catalogue.tokens,
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
def refused_in(name: str) -> list[tuple[str, str]]:
    """Return the refused words in a name, each with the term to use."""
    words = words_of(name)
    return [(" ".join(word), term) for word, term in refused().items() if has(words, word)]


def faults(where: str, name: str) -> list[str]:
    """Return an error for each word in a name for which the glossary has another term."""
    allowed = {word for place, words in ALLOWED.items() if where.startswith(place) for word in words}
    return [
        f"{where}: {name!r}: the glossary says {term!r}, not {word!r}"
        for word, term in refused_in(name)
        if word not in allowed
    ]


def test_the_glossary_names_refused_words() -> None:
    assert len(refused()) > 20
    assert refused()["presence",] == "heartbeat"


def test_no_name_is_a_word_that_the_glossary_calls_by_another() -> None:
    found = [fault for where, names in modules().items() for name in names for fault in faults(where, name)]
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
        for where, names in modules().items()
        if not where.startswith(places)
        for name in names
        if has(words_of(name), [word])
        and not any(has(words_of(name), other.split("_")) for other in other_words)
        and name not in NOT_OURS.get(where, ())
    ]
    assert found == []


def test_a_refused_word_is_found_in_every_kind_of_name() -> None:
    tree = ast.parse("class StayPresence:\n    def beat(self, poison): self.DLQHeart = 1\n")
    assert [name for name in names_of(tree) if faults("x", name)] == ["StayPresence", "poison", "DLQHeart"]
    assert faults("x", "waterclock_attendance")
    assert not faults("x", "is_heartbeat_represented")
