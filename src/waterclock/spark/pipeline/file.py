"""Pipelines as a TOML file: what to read, how to batch it, where to write, and how to run."""

from __future__ import annotations

import os
import posixpath
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, cast

from waterclock.batching.event_time.rule import EventTimeRule
from waterclock.batching.rate.rule import RateRule
from waterclock.batching.rate.silence import checked_silence
from waterclock.connection import Database, connect
from waterclock.database.backend import parse_url, refuse_missing_file
from waterclock.errors import InvalidArgumentError, NotFoundError, UnavailableError, WaterclockError
from waterclock.message import Position
from waterclock.quoting import quoted
from waterclock.spark.buckets import checked_buckets
from waterclock.spark.pipeline.toml_lines import TomlLines
from waterclock.time import is_duration, to_duration, to_time
from waterclock.topics.names import check_name
from waterclock.topics.topic import Topic

By = Literal["event_time", "rate"]
What = Literal["batches", "rejected"]
_TARGETS = ("table", "topic", "parquet")
_TARGETS_OF: dict[What, tuple[str, ...]] = {"batches": ("table", "parquet"), "rejected": ("topic", "parquet")}
_OF_A_PIPELINE = ("source", "batching", "output", "run")
_MOST = 2**31 - 1
"""As Spark counts."""

_TELLING = 4
"""So many characters of a password's beginning say too much."""

_VARIABLE = re.compile(r"\$(\$|\{([^}]*)\}?)?")

AVAILABLE_NOW = "available now"
"""The trigger that reads what there is and ends."""


def place_options(
    url: str, ledgers: str | None, url_name: str = "url", ledgers_name: str = "ledgers"
) -> dict[str, str]:
    """Give the options of the format ``waterclock`` that name a database."""
    return {url_name: url} | ({} if ledgers is None else {ledgers_name: ledgers})


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
        About how many messages a micro-batch takes; None: half a million for each bucket of the state.
    """

    url: str = field(repr=False)  # it may hold a password
    ledgers: str | None = field(repr=False)
    topic: str
    start: Mapping[str, str]
    max_messages_per_trigger: int | None


@dataclass(frozen=True)
class Output:
    """What is written where.

    Attributes
    ----------
    name
        What a topic knows the writes of this output by; the target unless the file gives one.
    what
        The batches, or the messages that are in none.
    kind, target
        A message table, a topic, or a folder of Parquet files, and its name.
    url, ledgers
        The database of the table or topic, as those of the source.
    """

    name: str
    what: What
    kind: Literal["table", "topic", "parquet"]
    target: str
    url: str = field(repr=False)
    ledgers: str | None = field(repr=False)


@dataclass(frozen=True)
class Pipeline:
    """A pipeline, checked.

    Attributes
    ----------
    name
        The file's name without its ending; of several in one file, the name that the file gives it.
    source, outputs
        What is read, and what is written.
    by, rule
        Which of the two ways to batch, and the arguments of `waterclock.spark.event_time_batches` or
        `waterclock.spark.rate_aware_batches`.
    checkpoint
        Folder or URL where the stream keeps how far it has come.
    trigger
        How often there is a micro-batch, a duration, or `AVAILABLE_NOW`.
    state_partitions
        In how many parts the state is kept; None: as many as the cluster has cores when the checkpoint is made.
    state_buckets
        How many buckets of sources there are in these; None: four for each part.
    """

    name: str
    source: Source
    by: By
    rule: Mapping[str, Any]
    outputs: tuple[Output, ...]
    checkpoint: str
    trigger: str
    state_partitions: int | None
    state_buckets: int | None

    def check_places(self) -> None:
        """Insist that what is read and written is there, and that what is rejected is not read again.

        Raises
        ------
        NotFoundError
            Naming the topic or the message table that is not.
        InvalidArgumentError
            Where rejected messages go to the topic that is read: they would be rejected again and again.
        """
        with _opened(f"{self.name}, source", self.source) as database:
            read = _identity(database.topic(self.source.topic))
        for output in self.outputs:
            if output.kind == "parquet":
                continue
            with _opened(f"{self.name}, output {quoted(output.name)}", output) as database:
                if output.kind == "table":
                    ids = database.table(output.target).options.id_type
                    if ids != "text":
                        raise InvalidArgumentError(
                            f"table {quoted(output.target)} has ids of type {ids}, and those of batches are texts;"
                            ' make one with id_type="text"'
                        )
                elif _identity(database.topic(output.target)) == read:
                    raise InvalidArgumentError(
                        f"topic {quoted(output.target)} is the one that is read, so rejected messages would come again"
                        " and again from there; give another one"
                    )


@contextmanager
def _opened(what: str, place: Source | Output) -> Generator[Database]:
    """Open a database that is there, and have errors say what of the file it is for, in a line."""
    try:
        refuse_missing_file(place.url)
        with connect(place.url, place.ledgers) as database:
            yield database
    except (InvalidArgumentError, NotFoundError, UnavailableError) as error:
        raise type(error)(f"{what}: {' '.join(str(error).split())}") from error


def _identity(topic: Topic) -> object:
    """Tell topics apart, however the URLs of their databases are written; earlier versions gave them no origin."""
    return topic.storage.origin or (topic.storage.backend.url, topic.name)


@dataclass(frozen=True)
class PipelineFile:
    """A file with one pipeline, or several that share a Spark session.

    Attributes
    ----------
    name
        The file's name without its ending.
    pipelines
        In the order of the file.
    spark
        Settings of the session, by Spark's names.
    """

    name: str
    pipelines: tuple[Pipeline, ...]
    spark: Mapping[str, str] = field(repr=False)  # it may hold the keys of a store

    @classmethod
    def read(cls, path: Path) -> PipelineFile:
        """Read and check a file.

        Raises
        ------
        NotFoundError
            Where there is none.
        UnavailableError
            Where it cannot be read.
        InvalidArgumentError
            Naming the file, the line, the key and what is wrong with its value.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise NotFoundError(f"there is no file {quoted(str(path))}") from None
        except UnicodeDecodeError as error:
            raise InvalidArgumentError(f"{path}: this is no UTF-8 text, which TOML is: {error.reason}") from error
        except IsADirectoryError:
            raise InvalidArgumentError(f"{path}: this is a folder; name the pipeline's file in it") from None
        except OSError as error:
            raise UnavailableError(f"{path}: this file cannot be read: {error.strerror}") from error
        try:
            content = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise InvalidArgumentError(f"{path}: this is no TOML: {error}") from error
        return _checked(path, content, TomlLines(text))


class _Table:
    """One table of the file, whose keys are taken one by one; a key that remains is unknown, and refused."""

    def __init__(
        self, path: Path, lines: TomlLines, name: str, values: object, place: int = 0, pipeline: int = 0
    ) -> None:
        self._path = path
        self._lines = lines
        self._name = name
        self._place = place
        self._pipeline = pipeline
        self._filled_in: dict[str, str] = {}
        if not isinstance(values, dict):
            raise self.wrong("", f"the table [{name}] is missing" if values is None else f"{name} must be a table")
        self._values = dict(cast("dict[str, object]", values))
        self._taken: dict[str, object] = {}
        self._known: list[str] = []

    def text(self, key: str) -> str:
        value = self.optional(key)
        if value is None:
            raise self.wrong(key, f"{self._name}.{key} is missing")
        return value

    def optional(self, key: str) -> str | None:
        value = cast("str | None", self.take(key, (str,), "a text in quotes"))
        if value == "" or "\0" in (value or ""):
            raise self.wrong(
                key, f"{self._name}.{key}: {quoted(value)} is empty, or holds a character that no name has"
            )
        return value

    def url(self, key: str) -> str | None:
        value = self.optional(key)
        if value is not None:
            self.check(key, lambda: parse_url(value))
        return value

    def whole(self, key: str) -> int | None:
        value = cast("int | None", self.take(key, (int,), "a whole number"))
        if value is not None and not 1 <= value <= _MOST:
            raise self.wrong(
                key, f"{self._name}.{key}: {quoted(value)} is no count; give a whole number from 1 to {_MOST}"
            )
        return value

    def take(self, key: str, kinds: tuple[type, ...], wanted: str) -> object:
        """Take a value, with the variables of a text put in; None where the key is not there."""
        self._known.append(key)
        value = self._values.pop(key, None)
        if value is None:
            return None
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise self.wrong(key, f"{self._name}.{key}: {quoted(value)} must be {wanted}")
        self._taken[key] = self._filled(key, value) if isinstance(value, str) else value
        if self._taken[key] != value:
            self._filled_in = {str(self._taken[key]): str(value)} | self._filled_in  # the longer ones first
        return self._taken[key]

    def check(self, key: str, check: Callable[[], Any]) -> Any:
        """Have another part of Waterclock check a value, and say where it stands if it refuses."""
        try:
            return check()
        except WaterclockError as error:
            raise self.wrong(key, f"{self._name}.{key} = {quoted(self._taken.get(key))}: {error}") from error

    def end(self) -> None:
        """Refuse the keys that were not taken."""
        for key in self._values:
            known = ", ".join(sorted(self._known))
            raise self.wrong(key, f"{self._name}.{key} is not known; there are {known}")

    def flat(self) -> dict[str, str]:
        """Take all values as texts; the keys of tables within get a dot before them."""
        found: dict[str, str] = {}
        waiting = [*self._values.items()]
        while waiting:
            key, value = waiting.pop(0)
            if isinstance(value, dict):
                waiting += [(f"{key}.{name}", inner) for name, inner in cast("dict[str, object]", value).items()]
            elif isinstance(value, bool):
                found[key] = str(value).lower()
            elif isinstance(value, str | int | float):
                found[key] = self._filled(key, str(value))
            else:
                raise self.wrong(key, f"{self._name}.{key}: {quoted(value)} must be a text, a number, true or false")
        return found

    def wrong(self, key: str, text: str) -> InvalidArgumentError:
        line = self._lines.find(self._name, key, self._place, self._pipeline)
        return InvalidArgumentError(f"{self._path}, line {line}: {self._named(key, text)}")

    def _named(self, key: str, text: str) -> str:
        """Show of what came from the environment, which may be a password, the variables' names."""
        for said, name in self._filled_in.items():
            for form, shown in ((quoted(said), quoted(name)), (repr(said)[1:-1], name), (said, name)):
                text = text.replace(form, shown)
        if any(said[:_TELLING] in text for said, name in self._filled_in.items() if _VARIABLE.fullmatch(name)):
            return f"{self._name}.{key}: what the environment has for its variables is not what belongs there"
        return text

    def _filled(self, key: str, text: str) -> str:
        """Put in what the environment has for ``${NAME}``; ``$$`` is a dollar sign."""

        def fill(found: re.Match[str]) -> str:
            if found[1] == "$":
                return "$"
            name = found[2]
            if name is None or not found[0].endswith("}"):
                raise self.wrong(
                    key, f"{self._name}.{key}: a $ begins the name of a variable, ${{NAME}}; write $$ for a dollar sign"
                )
            if name not in os.environ:
                raise self.wrong(key, f"{self._name}.{key}: there is no variable {quoted(name)} in the environment")
            if os.environ[name]:
                self._filled_in[os.environ[name]] = found[0]
            return os.environ[name]

        return _VARIABLE.sub(fill, text)


def _checked(path: Path, content: dict[str, Any], lines: TomlLines) -> PipelineFile:
    spark: Mapping[str, str] = {}
    if "spark" in content:
        settings = _Table(path, lines, "spark", content.pop("spark")).flat()
        spark = {name if name.startswith("spark.") else f"spark.{name}": value for name, value in settings.items()}
    given = content.pop("pipeline", None)
    if given is None:
        one = _pipeline(path, content, lines, 0, path.stem, ("pipeline", "spark"))
        _refuse_shared_folders(path, lines, [one])
        return PipelineFile(path.stem, (one,), spark)
    if (
        not isinstance(given, list)
        or not given
        or not all(isinstance(each, dict) for each in cast("list[object]", given))
    ):
        raise InvalidArgumentError(f"{path}, line {lines.find('pipeline')}: write [[pipeline]], once for each")
    for name, value in content.items():
        line = lines.find(name) if isinstance(value, dict | list) else lines.find("", name)
        raise InvalidArgumentError(
            f"{path}, line {line}: {name} is not known beside [[pipeline]]; there are pipeline, spark"
        )
    pipelines = [
        _named_pipeline(path, values, lines, number)
        for number, values in enumerate(cast("list[dict[str, Any]]", given))
    ]
    twice, times = Counter(one.name for one in pipelines).most_common(1)[0]
    if times > 1:
        raise InvalidArgumentError(f"{path}: two pipelines have the name {quoted(twice)}; each needs its own")
    if len({_folder(one.checkpoint) for one in pipelines}) < len(pipelines):
        raise InvalidArgumentError(f"{path}: two pipelines have one run.checkpoint; each needs its own")
    _refuse_shared_folders(path, lines, pipelines)
    return PipelineFile(path.stem, tuple(pipelines), spark)


def _refuse_shared_folders(path: Path, lines: TomlLines, pipelines: Sequence[Pipeline]) -> None:
    """Insist that no output to Parquet has its folder within that of another: it would replace what that one wrote."""
    checkpoints = {_folder(each.checkpoint) for each in pipelines}
    folders: list[str] = []
    for number, pipeline in enumerate(pipelines):
        for place, output in enumerate(pipeline.outputs):
            if output.kind != "parquet":
                continue
            folder = _folder(output.target)
            within = [other for other in folders if f"{folder}/".startswith(f"{other}/")]
            around = [other for other in folders if f"{other}/".startswith(f"{folder}/")]
            if within or around or folder in checkpoints:
                line = lines.find("output", "parquet", place, number)
                raise InvalidArgumentError(
                    f"{path}, line {line}: output.parquet: this folder and that of another output, or of a checkpoint,"
                    " are one, or one lies in the other; give each its own"
                )
            folders.append(folder)


def _folder(place: str) -> str:
    """Write a folder or URL so that two ways to write one are equal."""
    scheme, separator, rest = place.partition(":")
    if not separator or scheme == "file":
        return os.path.abspath(f"/{rest.lstrip('/')}" if separator else place)  # noqa: PTH100  # resolves "..", opens nothing
    return f"{scheme}:{posixpath.normpath(rest)}"


def _named_pipeline(path: Path, values: dict[str, Any], lines: TomlLines, number: int) -> Pipeline:
    values = dict(values)
    own = _Table(path, lines, "pipeline", {"name": values.pop("name", None)}, 0, number)
    name = own.text("name")
    own.check("name", lambda: check_name(name))
    return _pipeline(path, values, lines, number, name, ("name",))


def _pipeline(
    path: Path, content: dict[str, Any], lines: TomlLines, number: int, name: str, besides: tuple[str, ...]
) -> Pipeline:
    def table(key: str) -> _Table:
        return _Table(path, lines, key, content.get(key), 0, number)

    source = _source(table("source"))
    by, rule = _rule(table("batching"))
    given = content.get("output")
    if not isinstance(given, list) or not given:
        line = lines.find("output", pipeline=number)
        raise InvalidArgumentError(f"{path}, line {line}: there is no [[output]]; write at least one")
    outputs: list[Output] = []
    for place, values in enumerate(cast("list[object]", given)):
        written = _Table(path, lines, "output", values, place, number)
        output = _output(written, source)
        if any(output.name == other.name and output.kind == other.kind for other in outputs):
            raise written.wrong(
                output.kind, f"two outputs are named {quoted(output.name)}; give this one a name: name = …"
            )
        outputs.append(output)
    run = table("run")
    checkpoint = run.text("checkpoint")
    trigger = run.optional("trigger") or AVAILABLE_NOW
    if trigger != AVAILABLE_NOW:
        run.check("trigger", lambda: to_duration(trigger, "trigger"))
    state_partitions, state_buckets = run.whole("state_partitions"), run.whole("state_buckets")
    if state_buckets is not None:
        run.check("state_buckets", lambda: checked_buckets(state_buckets))
    run.end()
    for key, value in content.items():
        if key not in _OF_A_PIPELINE:
            inside = (key, "") if isinstance(value, dict | list) else ("pipeline" if "name" in besides else "", key)
            line = lines.find(*inside, pipeline=number)
            known = ", ".join((*_OF_A_PIPELINE, *besides))
            raise InvalidArgumentError(f"{path}, line {line}: {key} is not known; there are {known}")
    return Pipeline(name, source, by, rule, tuple(outputs), checkpoint, trigger, state_partitions, state_buckets)


def _source(table: _Table) -> Source:
    url, topic = table.url("url"), table.text("topic")
    if url is None:
        raise table.wrong("url", "source.url is missing")
    table.check("topic", lambda: check_name(topic))
    source = Source(
        url,
        table.optional("ledgers"),
        topic,
        _start(table),
        table.whole("max_messages_per_trigger"),
    )
    table.end()
    return source


def _start(table: _Table) -> dict[str, str]:
    start = table.take("start", (str, datetime), "a time, how long ago, a position, earliest or latest")
    if start is None or start == "earliest":
        return {}
    # A position holds only digits and colons, and no time does.
    if isinstance(start, str) and (start == "latest" or start.replace(":", "").isdigit()):
        if start != "latest":
            table.check("start", lambda: Position.parse(start))
        return {"startingPosition": start}
    if isinstance(start, str) and is_duration(start):
        table.check("start", lambda: to_duration(start, "start"))
        return {"startingTimestamp": start}
    ns = table.check("start", lambda: to_time(cast("str | datetime", start), "start"))
    return {"startingTimestamp": start if isinstance(start, str) else str(ns)}


def _rule(table: _Table) -> tuple[By, Mapping[str, Any]]:
    by = table.optional("by") or "event_time"
    if by not in ("event_time", "rate"):
        raise table.wrong("by", f"batching.by: {quoted(by)} is none; there are event_time and rate")
    rule = _event_time_rule(table) if by == "event_time" else _rate_rule(table)
    table.end()
    return by, rule


def _lengths(table: _Table, keys: tuple[str, ...]) -> dict[str, Any]:
    given = {key: value for key in keys if (value := table.optional(key)) is not None}
    for key, value in given.items():
        table.check(key, lambda key=key, value=value: to_duration(value, key))
    return given


def _event_time_rule(table: _Table) -> dict[str, Any]:
    rule = _lengths(table, ("window", "max_delay", "max_lead", "max_skew"))
    on_conflict = table.optional("on_conflict")
    if on_conflict is not None:
        table.check("on_conflict", lambda: EventTimeRule.checked(0, 0, 0, cast("Any", on_conflict)))
        rule["on_conflict"] = on_conflict
    return rule


def _rate_rule(table: _Table) -> dict[str, Any]:
    rule = _lengths(table, ("batch_length", "forget_after", "max_skew"))
    timeout = table.take("timeout", (str, float), "a length of time in quotes, or inf for none")
    if timeout is not None:
        rule["timeout"] = timeout
    table.check("forget_after", lambda: checked_silence(rule.get("forget_after")))
    length = rule.get("batch_length", "1s")
    table.check("timeout", lambda: RateRule.checked(length, cast("Any", timeout)))
    gated = table.take("gated", (bool, list), "true, false, or a list of streams")
    if isinstance(gated, list) and not all(isinstance(stream, str) for stream in cast("list[object]", gated)):
        raise table.wrong("gated", f"batching.gated: {quoted(gated)} must be true, false, or a list of streams")
    if gated is not None:
        rule["gated"] = frozenset(cast("list[str]", gated)) if isinstance(gated, list) else gated
    return rule


def _output(table: _Table, source: Source) -> Output:
    what = table.text("what")
    if what not in _TARGETS_OF:
        raise table.wrong("what", f"output.what: {quoted(what)} is none; there are {', '.join(_TARGETS_OF)}")
    targets = {kind: table.optional(kind) for kind in _TARGETS}
    given = [(kind, target) for kind, target in targets.items() if target is not None]
    allowed = _TARGETS_OF[what]
    if len(given) != 1 or given[0][0] not in allowed:
        raise table.wrong(given[0][0] if given else "", f"an output of {what} needs one of {' and '.join(allowed)}")
    kind, target = given[0]
    if kind == "topic":
        table.check(kind, lambda: check_name(target))
    name, url, ledgers = table.optional("name"), table.url("url"), table.optional("ledgers")
    if name is not None:
        table.check("name", lambda: check_name(name))
    if kind == "parquet" and (url or ledgers):
        raise table.wrong("url" if url else "ledgers", "an output to parquet is in no database; parquet says where")
    if url is None and ledgers is not None:
        raise table.wrong("ledgers", "output.ledgers belongs to output.url, which is missing")
    table.end()
    place = (source.url, source.ledgers) if url is None else (url, ledgers)
    return Output(name or target, what, cast("Any", kind), target, *place)
