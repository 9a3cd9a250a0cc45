"""Reads pipelines from a TOML file: sources, batching, outputs, and settings of the run."""

from __future__ import annotations

import os
import posixpath
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

from waterclock._support.quoting import quoted
from waterclock.batching.adaptive import AdaptiveBatchLength
from waterclock.batching.declared_streams import declared_streams
from waterclock.batching.event_time.rule import EventTimeRule
from waterclock.batching.rate.by_message.aligned import checked_clocks
from waterclock.batching.rate.by_message.silence import checked_silence
from waterclock.batching.rate.rule import RateRule
from waterclock.configuration.toml_file import read_toml
from waterclock.configuration.toml_lines import TomlLines
from waterclock.configuration.toml_table import TomlTable
from waterclock.errors import InvalidArgumentError
from waterclock.message import Position
from waterclock.spark.buckets import checked_buckets
from waterclock.spark.pipeline.definition import AVAILABLE_NOW, By, Kind, Pipeline, PipelineOutput, PipelineSource, What
from waterclock.time import format_duration, is_duration, to_duration, to_time
from waterclock.topics.catalogue.damage_policy import OnDamage, check_on_damage
from waterclock.topics.model.names import check_name

_PATTERN_MARKS = "{}[]*?\\"

_TARGETS: tuple[Kind, ...] = ("table", "topic", "parquet")
_TARGETS_OF: dict[What, tuple[Kind, ...]] = {"batches": ("table", "parquet"), "rejected": ("topic", "parquet")}
_SAME_STORE = {"s3a": "s3", "s3n": "s3"}
_ADAPTIVE = "adaptive"
_OF_A_PIPELINE = ("source", "batching", "output", "run")


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
            If it is missing.
        UnavailableError
            If it cannot be read.
        InvalidArgumentError
            Naming the file, the line, the key and the error in its value.
        """
        content, lines = read_toml(path)
        return _checked(path, content, lines)


def _checked(path: Path, content: dict[str, Any], lines: TomlLines) -> PipelineFile:
    spark: Mapping[str, str] = {}
    if "spark" in content:
        settings = TomlTable(path, lines, "spark", content.pop("spark")).flat()
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
        raise InvalidArgumentError(
            f"{path}, line {lines.find('pipeline')}: pipeline must be an array of tables. Write [[pipeline]] once"
            " for each pipeline"
        )
    for name, value in content.items():
        line = lines.find(name) if isinstance(value, dict | list) else lines.find("", name)
        raise InvalidArgumentError(f"{path}, line {line}: no table named {name}; choose from pipeline, spark")
    pipelines = [
        _named_pipeline(path, values, lines, number)
        for number, values in enumerate(cast("list[dict[str, Any]]", given))
    ]
    twice, times = Counter(one.name for one in pipelines).most_common(1)[0]
    if times > 1:
        raise InvalidArgumentError(f"{path}: pipeline names must be unique, got {quoted(twice)} twice")
    _refuse_shared_folders(path, lines, pipelines)
    _refuse_shared_ids(path, lines, pipelines)
    return PipelineFile(path.stem, tuple(pipelines), spark)


def _refuse_shared_folders(path: Path, lines: TomlLines, pipelines: Sequence[Pipeline]) -> None:
    """Check that no folder lies within another: an output would overwrite another one, or a checkpoint."""
    folders: list[str] = []
    for number, pipeline in enumerate(pipelines):
        places = [("run", "checkpoint", 0, pipeline.checkpoint)]
        for place, output in enumerate(pipeline.outputs):
            if output.kind == "parquet":
                places.append(("output", "parquet", place, output.target))
        for table, key, place, target in places:
            folder = _folder(target)
            if any(f"{folder}/".startswith(f"{one}/") or f"{one}/".startswith(f"{folder}/") for one in folders):
                raise InvalidArgumentError(
                    f"{path}, line {lines.find(table, key, place, number)}: {table}.{key} must not overlap the"
                    f" folder of another output or checkpoint, got {quoted(target)}"
                )
            folders.append(folder)


def _refuse_shared_ids(path: Path, lines: TomlLines, pipelines: Sequence[Pipeline]) -> None:
    """Check that no two pipelines batch one topic into one message table: their batches would have the same ids."""
    known: set[tuple[str | None, ...]] = set()
    for number, pipeline in enumerate(pipelines):
        for place, output in enumerate(pipeline.outputs):
            if output.kind != "table":
                continue
            which = (pipeline.source.url, pipeline.source.topic, output.url, output.target)
            if which in known:
                line = lines.find("output", "table", place, number)
                raise InvalidArgumentError(
                    f"{path}, line {line}: output.table must differ between pipelines that read the same"
                    f" topic, got {quoted(output.target)} twice for {quoted(pipeline.source.topic)}. The"
                    " batches of both would have the same ids. Choose another table"
                )
            known.add(which)


def _folder(place: str) -> str:
    """Normalise a folder or URL, so that different spellings are equal."""
    scheme, separator, rest = place.partition(":")
    if not separator or scheme == "file":
        return os.path.realpath(
            f"/{unquote(rest).lstrip('/')}" if separator and rest.startswith("/") else rest or place
        )
    return f"{_SAME_STORE.get(scheme, scheme)}:{posixpath.normpath(rest)}"


def _named_pipeline(path: Path, values: dict[str, Any], lines: TomlLines, number: int) -> Pipeline:
    values = dict(values)
    own = TomlTable(path, lines, "pipeline", {"name": values.pop("name", None)}, 0, number)
    name = own.text("name")
    own.check("name", lambda: check_name(name))
    return _pipeline(path, values, lines, number, name, ("name",))


def _pipeline(
    path: Path, content: dict[str, Any], lines: TomlLines, number: int, name: str, besides: tuple[str, ...]
) -> Pipeline:
    def table(key: str) -> TomlTable:
        return TomlTable(path, lines, key, content.get(key), 0, number)

    source = _source(table("source"))
    by, rule, adaptive = _rule(table("batching"))
    given = content.get("output")
    if not isinstance(given, list) or not given:
        line = lines.find("output", pipeline=number)
        raise InvalidArgumentError(f"{path}, line {line}: [[output]] is missing. Add at least one [[output]]")
    outputs: list[PipelineOutput] = []
    for place, values in enumerate(cast("list[object]", given)):
        written = TomlTable(path, lines, "output", values, place, number)
        output = _output(written, source)
        if any(output.name == other.name and output.kind == other.kind for other in outputs):
            raise written.wrong(
                output.kind,
                f"output names must be unique, got {quoted(output.name)} twice. Add a name to this output: name = …",
            )
        outputs.append(output)
    run = table("run")
    checkpoint = run.text("checkpoint")
    _refuse_pattern(run, "run.checkpoint", checkpoint)
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
            raise InvalidArgumentError(f"{path}, line {line}: no key named {key}; choose from {known}")
    return Pipeline(
        name, source, by, rule, adaptive, tuple(outputs), checkpoint, trigger, state_partitions, state_buckets
    )


def _source(table: TomlTable) -> PipelineSource:
    url, topic = table.url("url"), table.text("topic")
    if url is None:
        raise table.wrong("url", "source.url is missing")
    table.check("topic", lambda: check_name(topic))
    source = PipelineSource(
        url,
        table.optional("ledgers"),
        topic,
        _start(table),
        table.whole("max_messages_per_trigger"),
        table.take("fail_on_data_loss", (bool,), "true or false") is not False,
        _on_damage(table),
    )
    table.end()
    return source


def _on_damage(table: TomlTable) -> OnDamage:
    on_damage = table.optional("on_damage") or "raise"
    return cast("OnDamage", table.check("on_damage", lambda: check_on_damage(on_damage)))


def _start(table: TomlTable) -> dict[str, str]:
    start = table.take("start", (str, datetime), "a time, how long ago, a position, earliest or latest")
    if start is None or start == "earliest":
        return {}
    # A position holds only digits and colons, and no time does.
    if isinstance(start, str) and (start == "latest" or start.replace(":", "").isdigit()):
        if start != "latest":
            return {"startingPosition": str(table.check("start", lambda: Position.parse(start)))}
        return {"startingPosition": start}
    if isinstance(start, str) and is_duration(start):
        ago = table.check("start", lambda: to_duration(start, "start"))
        return {"startingTimestamp": format_duration(ago)}
    ns = table.check("start", lambda: to_time(cast("str | datetime", start), "start"))
    return {"startingTimestamp": str(ns)}


def _rule(table: TomlTable) -> tuple[By, Mapping[str, Any], AdaptiveBatchLength | None]:
    by = table.optional("by") or "event_time"
    if by not in _RULES:
        raise table.wrong("by", f"batching.by must be one of {', '.join(_RULES)}, got {quoted(by)}")
    rule = _RULES[by](table)
    table.end()
    return by, rule, rule.pop(_ADAPTIVE, None)


def _lengths(table: TomlTable, keys: tuple[str, ...]) -> dict[str, Any]:
    given = {key: value for key in keys if (value := table.optional(key)) is not None}
    for key, value in given.items():
        table.check(key, lambda key=key, value=value: to_duration(value, key))
    return given


def _event_time_rule(table: TomlTable) -> dict[str, Any]:
    rule = _lengths(table, ("window", "max_delay", "max_lead", "gap", "max_skew"))
    on_conflict = table.optional("on_conflict")
    if on_conflict is not None:
        table.check("on_conflict", lambda: EventTimeRule.checked(0, 0, 0, cast("Any", on_conflict)))
        rule["on_conflict"] = on_conflict
    return rule | _boundaries(table)


def _boundaries(table: TomlTable) -> dict[str, Any]:
    boundaries = table.texts("boundaries")
    return {"boundaries": frozenset(boundaries)} if boundaries else {}


def _id_rule(table: TomlTable) -> dict[str, Any]:
    rule = {"id_of": table.text("id_of"), **_lengths(table, ("max_delay", "max_skew"))}
    streams = table.texts("streams")
    if streams is not None:
        table.check("streams", lambda: declared_streams(streams))
        rule["streams"] = frozenset(streams)
    return rule


def _rate_rule(table: TomlTable) -> dict[str, Any]:
    given, longest = table.optional("batch_length"), table.optional("longest")
    if longest is not None and given != _ADAPTIVE:
        raise table.wrong("longest", f"batching.longest needs batch_length = 'adaptive', got {quoted(given or '1s')}")
    rule: dict[str, Any] = {}
    if given == _ADAPTIVE:
        adaptive = rule[_ADAPTIVE] = table.check("longest", lambda: AdaptiveBatchLength(longest=longest))
        table.check("longest", lambda: RateRule.checked(adaptive.bounds[1], None))
        given = format_duration(adaptive.batch_length)
    length = given or "1s"
    table.check("batch_length", lambda: RateRule.checked(length, None))
    rule |= _lengths(table, ("forget_after", "max_skew", "max_disorder"))
    if given is not None:
        rule["batch_length"] = given
    timeout = table.duration_or_inf("timeout")
    if timeout is not None:
        rule["timeout"] = timeout
    table.check("forget_after", lambda: checked_silence(rule.get("forget_after")))
    table.check("timeout", lambda: RateRule.checked(length, timeout))
    table.check("max_disorder", lambda: RateRule.checked(length, None, rule.get("max_disorder", 0)))
    clocks = table.optional("clocks")
    if clocks is not None:
        table.check("clocks", lambda: checked_clocks(cast("Any", clocks)))
        rule["clocks"] = clocks
    gated = table.take("gated", (bool, list), "true, false, or a list of streams")
    if isinstance(gated, list) and not all(isinstance(stream, str) for stream in cast("list[object]", gated)):
        raise table.wrong("gated", f"batching.gated must be true, false, or a list of streams, got {quoted(gated)}")
    if gated is not None:
        rule["gated"] = frozenset(cast("list[str]", gated)) if isinstance(gated, list) else gated
    return rule | _boundaries(table)


_RULES: dict[By, Callable[[TomlTable], dict[str, Any]]] = {
    "event_time": _event_time_rule,
    "rate": _rate_rule,
    "id": _id_rule,
}


def _refuse_pattern(table: TomlTable, name: str, folder: str) -> None:
    """Check that Spark finds its own files: it writes to the path as given, but reads it as a pattern."""
    if any(mark in folder for mark in _PATTERN_MARKS):
        raise table.wrong(
            name.rpartition(".")[2],
            f"{name} must not contain any of {_PATTERN_MARKS}, which Spark reads as a pattern, got {quoted(folder)}",
        )


def _output(table: TomlTable, source: PipelineSource) -> PipelineOutput:
    what = table.text("what")
    if what not in _TARGETS_OF:
        raise table.wrong("what", f"output.what must be one of {', '.join(_TARGETS_OF)}, got {quoted(what)}")
    targets = {kind: table.optional(kind) for kind in _TARGETS}
    given = [(kind, target) for kind, target in targets.items() if target is not None]
    allowed = _TARGETS_OF[what]
    if len(given) != 1 or given[0][0] not in allowed:
        raise table.wrong(
            given[0][0] if given else "", f"an output of {what} must have exactly one target: {' or '.join(allowed)}"
        )
    kind, target = given[0]
    if kind == "topic":
        table.check(kind, lambda: check_name(target))
    elif kind == "parquet":
        _refuse_pattern(table, "output.parquet", target)
    name, url, ledgers = table.optional("name"), table.url("url"), table.optional("ledgers")
    if name is not None:
        table.check("name", lambda: check_name(name))
    if kind == "parquet" and (url or ledgers):
        raise table.wrong(
            "url" if url else "ledgers",
            "an output to parquet must not have url or ledgers: output.parquet is already the path of its folder",
        )
    if url is None and ledgers is not None:
        raise table.wrong(
            "ledgers", "output.ledgers needs output.url: without it, the output uses source.url and source.ledgers"
        )
    table.end()
    place = (source.url, source.ledgers) if url is None else (url, ledgers)
    return PipelineOutput(name or target, what, cast("Any", kind), target, *place)
