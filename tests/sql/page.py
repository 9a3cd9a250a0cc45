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

This page lists the SQL statements that Waterclock runs often, and the tables that they use. Use it to review what
Waterclock does to your database, to plan indexes and grants, or to write plain SQL.

## How to read the statements

- Each section shows the statements that one call sends to the driver, in order. They were recorded while the call ran;
  only white space and comments were added.
- There are four example tables, all with `payload="text"`: `orders` without groups, `calls` with
  `groups="sequenced"`, `jobs` with `groups="exclusive"`, and `visits` with `purge_by="partition"`. Other options, and
  your own columns, change the statements.
- The consumer or producer has already made such calls. Once a second, it also checks whether the options have changed;
  these statements are not shown. Neither are SQLAlchemy's queries before it creates a table.
- `%(name)s` and `:name` are parameters. SQLite's driver receives a `?` instead of each name. If a statement below shows
  a `?`, as for inserted rows, the values come in the order of the columns.
- `BEGIN` and `COMMIT` are shown even if the driver calls a method instead. A statement without them commits
  immediately.
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

Times are integer nanoseconds since 1970, and names are compared byte by byte. "BIGINT; SQLite: INTEGER" means BIGINT
on all databases except SQLite. The catalogue also has a table `waterclock_migrations`, which holds its version.

### A table of messages

The table has the name that you chose. The type of `id` depends on the option `id_type`, and the type of `message` on
the option `payload`. Your own columns come last. With `purge_by="partition"`, the table on MariaDB also has the column
`acked_day`, which determines a row's partition.
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
