"""Putting docs/sql.md together: `verbs` says what the statements are taken from, `comments` what is said of them."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import indent

from tests.sql.comments import commented
from tests.sql.layout import laid_out
from tests.sql.schema import catalogue_tables, column_lines, meaning, message_table
from tests.sql.verbs import EXCLUSIVE_GROUPS, GROUPS, MESSAGE_TABLES, PARTITIONS, TOPICS, Verb, statements_of

from waterclock.connection import connect

PAGE = Path(__file__).parent.parent.parent / "docs" / "sql.md"

DATABASES = {"sqlite": "SQLite", "postgresql": "PostgreSQL", "mariadb": "MariaDB"}
"""How the page names each."""

Part = tuple[str, str]
"""A call's title, and the page's name of a database."""

_INTRODUCTION = """\
<!-- `make sql` writes this page; a test for each database keeps it current. -->

# SQL

The statements that run often, and the tables that they are about.

## How to read them

- The statements are those that the driver gets, in their order, recorded while the call runs. White space and comments
  are the page's.
- The table without groups is called `orders`, the one with `groups="sequenced"` is called `calls`, the one with
  `groups="exclusive"` is called `jobs`, the one with `purge_by="partition"` is called `visits`, all with
  `payload="text"`. Other options and columns of your own change statements.
- The consumer or the producer has been busy for a while. Once a second it also looks whether options have changed;
  that is not shown, nor what SQLAlchemy asks of a table before it makes one.
- `%(name)s` and `:name` are parameters. SQLite's driver counts its parameters, and gets a `?` in place of each name.
  Where it stays a `?`, as in rows that are inserted, the order is that of the columns.
- `BEGIN` and `COMMIT` also stand where the driver has methods of its own for them. A statement without them commits by
  itself.
"""

_CHAPTERS = (
    ("Message tables", MESSAGE_TABLES),
    ("Groups", GROUPS),
    ("Exclusive groups and heartbeats", EXCLUSIVE_GROUPS),
    ("Partitions", PARTITIONS),
    ("Topics", TOPICS),
)

_SCHEMA = """\
## Tables

Times are int nanoseconds since the epoch, and names are compared byte by byte. "BIGINT; SQLite: INTEGER" means BIGINT
on all databases but SQLite. The catalogue has one more table, `waterclock_migrations`, with its version.

### A table of messages

It has the name that you give. `id` is a text or a UUID where `id_type` says so, and `message` a text or JSON where
`payload` says so. Your own columns follow. With `purge_by="partition"`, MariaDB's has one more, `acked_day`, by which
its partitions are distinguished.
"""


def recorded_parts(url: str, database: str) -> dict[Part, str]:
    """Make every call in a database that is empty but for the catalogue, and lay its statements out."""
    with tempfile.TemporaryDirectory() as folder, connect(url, Path(folder)) as opened:
        recorded = statements_of(opened, [verb for _, verbs in _CHAPTERS for verb in verbs])
    return {
        (title, DATABASES[database]): ";\n\n".join(commented(map(laid_out, statements))) + ";"
        for title, statements in recorded.items()
    }


def written(parts: Mapping[Part, str]) -> str:
    """Write the page."""
    lines = [_INTRODUCTION]
    for title, verbs in _CHAPTERS:
        lines += [f"## {title}\n", *(_section(verb, parts) for verb in verbs)]
    lines += [_SCHEMA, *column_lines(message_table()), ""]
    for table in catalogue_tables():
        lines += [f"### {table.name}\n", f"{meaning(table)}\n", *column_lines(table), ""]
    return "\n".join(lines)


def parts_of(page: str) -> dict[Part, str]:
    """Find the statements in a page that `written` made."""
    return dict(_found(page))


def _section(verb: Verb, parts: Mapping[Part, str]) -> str:
    tabs = [
        f'=== "{name}"\n\n' + indent(f"```sql\n{parts[verb.title, name]}\n```\n", "    ")
        for name in DATABASES.values()
        if (verb.title, name) in parts
    ]
    return "\n".join([f"### {verb.title}\n", f"`{verb.python}`\n", f"{verb.text}\n", *tabs])


def _found(page: str) -> Iterator[tuple[Part, str]]:
    for section in re.split(r"^### ", page, flags=re.MULTILINE)[1:]:
        title = section.splitlines()[0]
        for tab in re.finditer(r'^=== "(\w+)"\n\n    ```sql\n(.*?)\n    ```$', section, re.MULTILINE | re.DOTALL):
            text = "\n".join(line.removeprefix("    ") for line in tab.group(2).splitlines())
            yield (title, tab.group(1)), text
