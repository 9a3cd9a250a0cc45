"""A pipeline as a TOML file: what to read, how to batch it, where to write, and how to run."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from waterclock.batching.event_time.rule import EventTimeRule
from waterclock.batching.rate.rule import RateRule
from waterclock.connection import connect
from waterclock.errors import InvalidArgumentError, NotFoundError, WaterclockError
from waterclock.message import Position
from waterclock.quoting import quoted
from waterclock.spark.pipeline.toml_lines import TomlLines
from waterclock.time import to_duration, to_time

By = Literal["event_time", "rate"]
What = Literal["batches", "rejected"]
_TARGETS = ("table", "topic", "parquet")
_TARGETS_OF: dict[What, tuple[str, ...]] = {"batches": ("table", "parquet"), "rejected": ("topic", "parquet")}

AVAILABLE_NOW = "available now"
"""The trigger that reads what there is and ends."""


@dataclass(frozen=True)
class Source:
    """What is read.

    Attributes
    ----------
    url, ledgers, topic
        The topic's place; ``ledgers`` is None where the default of `connect` is meant.
    start
        Options of the format that say where to begin.
    max_messages_per_trigger
        About how many messages a micro-batch takes; None: all that there are.
    """

    url: str = field(repr=False)  # it may hold a password
    ledgers: str | None = field(repr=False)
    topic: str
    start: Mapping[str, str]
    max_messages_per_trigger: int | None

    @property
    def place(self) -> dict[str, str]:
        """The options of the format that name the database."""
        return {"url": self.url} | ({} if self.ledgers is None else {"ledgers": self.ledgers})


@dataclass(frozen=True)
class Output:
    """What is written where.

    Attributes
    ----------
    what
        The batches, or the messages that are in none.
    kind, target
        A message table or a topic of the source's database, or a folder of Parquet files, and its name.
    """

    what: What
    kind: Literal["table", "topic", "parquet"]
    target: str


@dataclass(frozen=True)
class PipelineFile:
    """A pipeline, checked.

    Attributes
    ----------
    name
        The file's name without its ending.
    source, outputs
        What is read, and what is written.
    by, rule
        Which of the two ways to batch, and the arguments of `waterclock.spark.event_time_batches` or
        `waterclock.spark.rate_aware_batches`.
    checkpoint
        Folder or URL where the stream keeps how far it has come.
    trigger
        How often there is a micro-batch, a duration, or `AVAILABLE_NOW`.
    """

    name: str
    source: Source
    by: By
    rule: Mapping[str, Any]
    outputs: tuple[Output, ...]
    checkpoint: str
    trigger: str

    def check_places(self) -> None:
        """Insist that what is read and written is there.

        Raises
        ------
        NotFoundError
            Naming the topic or the message table that is not.
        """
        with connect(self.source.url, self.source.ledgers) as database:
            database.topic(self.source.topic)
            for output in self.outputs:
                if output.kind == "table":
                    database.table(output.target)
                elif output.kind == "topic":
                    database.topic(output.target)

    @classmethod
    def read(cls, path: Path) -> PipelineFile:
        """Read and check a file.

        Raises
        ------
        NotFoundError
            Where there is none.
        InvalidArgumentError
            Naming the file, the line, the key and what is wrong with its value.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise NotFoundError(f"there is no file {quoted(str(path))}") from None
        except UnicodeDecodeError as error:
            raise InvalidArgumentError(f"{path}: this is no UTF-8 text, which TOML is: {error.reason}") from None
        try:
            content = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise InvalidArgumentError(f"{path}: this is no TOML: {error}") from None
        return _checked(path, content, TomlLines(text))


class _Table:
    """One table of the file, whose keys are taken one by one; a key that remains is unknown, and refused."""

    def __init__(self, path: Path, lines: TomlLines, name: str, values: object, place: int = 0) -> None:
        self._path = path
        self._lines = lines
        self._name = name
        self._place = place
        if not isinstance(values, dict):
            raise self.wrong("", f"the table [{name}] is missing" if values is None else f"{name} must be a table")
        self._values = dict(cast("dict[str, object]", values))
        self._known: list[str] = []

    def text(self, key: str) -> str:
        value = self.optional(key)
        if value is None:
            raise self.wrong(key, f"{self._name}.{key} is missing")
        return value

    def optional(self, key: str) -> str | None:
        return cast("str | None", self._take(key, str, "a text in quotes"))

    def whole(self, key: str) -> int | None:
        value = self._take(key, int, "a whole number")
        if value is not None and (isinstance(value, bool) or value < 1):
            raise self.wrong(key, f"{self._name}.{key}: {quoted(value)} is no count; give a whole number of at least 1")
        return value

    def check(self, key: str, value: object, check: Callable[[], Any]) -> Any:
        """Have another part of Waterclock check a value, and say where it stands if it refuses."""
        try:
            return check()
        except WaterclockError as error:
            raise self.wrong(key, f"{self._name}.{key} = {quoted(value)}: {error}") from None

    def end(self) -> None:
        """Refuse the keys that were not taken."""
        for key in self._values:
            known = ", ".join(sorted(self._known))
            raise self.wrong(key, f"{self._name}.{key} is not known; there are {known}")

    def wrong(self, key: str, text: str) -> InvalidArgumentError:
        line = self._lines.find(self._name, key, self._place)
        return InvalidArgumentError(f"{self._path}, line {line}: {text}")

    def _take(self, key: str, kind: type, wanted: str) -> Any:
        self._known.append(key)
        value = self._values.pop(key, None)
        if value is not None and not isinstance(value, kind):
            raise self.wrong(key, f"{self._name}.{key}: {quoted(value)} must be {wanted}")
        return value


def _checked(path: Path, content: dict[str, Any], lines: TomlLines) -> PipelineFile:
    def table(name: str) -> _Table:
        return _Table(path, lines, name, content.get(name))

    source = _source(table("source"))
    by, rule = _rule(table("batching"))
    given = content.get("output")
    if not isinstance(given, list) or not given:
        raise InvalidArgumentError(f"{path}, line {lines.find('output')}: there is no [[output]]; write at least one")
    outputs = tuple(
        _output(_Table(path, lines, "output", values, place))
        for place, values in enumerate(cast("list[object]", given))
    )
    run = table("run")
    checkpoint = run.text("checkpoint")
    trigger = run.optional("trigger") or AVAILABLE_NOW
    if trigger != AVAILABLE_NOW:
        run.check("trigger", trigger, lambda: to_duration(trigger, "trigger"))
    run.end()
    known = ("source", "batching", "output", "run")
    for name, value in content.items():
        if name not in known:
            line = lines.find(name) if isinstance(value, dict | list) else lines.find("", name)
            raise InvalidArgumentError(f"{path}, line {line}: {name} is not known; there are {', '.join(known)}")
    return PipelineFile(path.stem, source, by, rule, outputs, checkpoint, trigger)


def _source(table: _Table) -> Source:
    start = table.optional("start")
    options: dict[str, str] = {}
    if start is not None and start != "earliest":
        # A position holds only digits and colons, and no time does.
        if start.replace(":", "").isdigit():
            table.check("start", start, lambda: Position.parse(start))
            options["startingPosition"] = start
        else:
            table.check("start", start, lambda: to_time(start, "start"))
            options["startingTimestamp"] = start
    source = Source(
        table.text("url"),
        table.optional("ledgers"),
        table.text("topic"),
        options,
        table.whole("max_messages_per_trigger"),
    )
    table.end()
    return source


def _rule(table: _Table) -> tuple[By, Mapping[str, Any]]:
    by = table.optional("by") or "event_time"
    if by not in ("event_time", "rate"):
        raise table.wrong("by", f"batching.by: {quoted(by)} is none; there are event_time and rate")
    lengths = ("window", "max_delay", "max_lead", "max_skew") if by == "event_time" else ("batch_length", "timeout")
    rule: dict[str, Any] = {}
    for key, value in ((key, table.optional(key)) for key in lengths):
        if value is not None:
            table.check(key, value, lambda key=key, value=value: to_duration(value, key))
            rule[key] = value
    if by == "rate":
        length = rule.get("batch_length", "1s")
        table.check("timeout", rule.get("timeout"), lambda: RateRule.checked(length, rule.get("timeout")))
    on_conflict = table.optional("on_conflict") if by == "event_time" else None
    if on_conflict is not None:
        table.check("on_conflict", on_conflict, lambda: EventTimeRule.checked(0, 0, 0, cast("Any", on_conflict)))
        rule["on_conflict"] = on_conflict
    table.end()
    return by, rule


def _output(table: _Table) -> Output:
    what = table.text("what")
    if what not in _TARGETS_OF:
        raise table.wrong("what", f"output.what: {quoted(what)} is none; there are {', '.join(_TARGETS_OF)}")
    targets = {kind: table.optional(kind) for kind in _TARGETS}
    given = [(kind, target) for kind, target in targets.items() if target is not None]
    allowed = _TARGETS_OF[what]
    if len(given) != 1 or given[0][0] not in allowed:
        raise table.wrong(given[0][0] if given else "", f"an output of {what} needs one of {' and '.join(allowed)}")
    kind, target = given[0]
    table.end()
    return Output(what, cast("Any", kind), target)
