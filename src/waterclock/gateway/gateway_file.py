"""Reads the TOML file of a gateway: its ingest, the batching of topics, and the handlers of batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from waterclock.batching.adaptive import AdaptiveBatchLength
from waterclock.batching.by_id.rule import IdRule
from waterclock.batching.declared_streams import declared_streams
from waterclock.batching.event_time.rule import CONFLICTS, EventTimeRule
from waterclock.batching.rate.by_message.aligned import checked_clocks
from waterclock.batching.rate.by_message.silence import checked_silence
from waterclock.batching.rate.rule import RateRule
from waterclock.configuration.toml_file import read_toml
from waterclock.configuration.toml_lines import TomlLines
from waterclock.configuration.toml_table import TomlTable
from waterclock.errors import InvalidArgumentError
from waterclock.gateway.part import Part
from waterclock.ingest.ingest_file import IngestFile
from waterclock.time import system_clock, to_duration, to_time
from waterclock.topics.model.names import check_name

_TABLES = ("broker", "kafka", "subscribe", "database", "limits", "batch", "work")
_OF_THE_INGEST = ("broker", "kafka", "subscribe", "limits")
_RULES = ("event_time", "rate", "id")

_GRACE = "30s"
_STOPS_WITHIN = 30.0
"""Seconds in which a part must end: an append is abandoned after 5, and a step of batching takes less."""

_AFTER_GRACE = 10.0
"""Seconds in which a worker must end after its grace period."""

_UPKEEP_EVERY = "1m"


@dataclass(frozen=True)
class GatewayFile:
    """The contents of a gateway's file."""

    parts: tuple[Part, ...]  # the parts, in the order in which they are stopped
    # The database; None: the command's.
    url: str | None = field(default=None, repr=False)
    ledgers: str | None = None

    @classmethod
    def read(cls, path: Path) -> GatewayFile:
        """Read and check a file.

        Raises
        ------
        NotFoundError, UnavailableError
            If it is missing, or cannot be read.
        InvalidArgumentError
            With the file, line and key, and the reason why the value is invalid.
        """
        content, lines = read_toml(path)
        for key, value in content.items():
            if key not in _TABLES:
                line = lines.find(key) if isinstance(value, dict | list) else lines.find("", key)
                raise InvalidArgumentError(f"{path}, line {line}: no key named {key}; choose from {', '.join(_TABLES)}")
        parts: list[Part] = []
        if any(name in content for name in _OF_THE_INGEST):
            IngestFile.read(path)  # reports mistakes before any part runs
            parts.append(Part("ingest", ("ingest", str(path.absolute())), _STOPS_WITHIN, reloads=True))
        parts += _batchings(path, lines, content.get("batch", []))
        if "work" in content:
            parts.append(_work(TomlTable(path, lines, "work", content["work"])))
        if not parts:
            raise InvalidArgumentError(
                f"{path} must have at least one of the tables [broker], [kafka], [[batch]] and [work]"
            )
        if "work" not in content:
            parts.append(Part("upkeep", ("upkeep", f"--every={_UPKEEP_EVERY}"), _STOPS_WITHIN))
        database = TomlTable(path, lines, "database", content.get("database", {}))
        url, ledgers = database.url("url"), database.optional("ledgers")
        database.end()
        return cls(tuple(parts), url, ledgers)


def _batchings(path: Path, lines: TomlLines, given: object) -> list[Part]:
    if not isinstance(given, list):
        raise InvalidArgumentError(
            f"{path}, line {lines.find('batch')}: batch must be an array of tables. Write [[batch]] once for each topic"
        )
    parts: dict[str, Part] = {}
    for place, values in enumerate(cast("list[object]", given)):
        table = TomlTable(path, lines, "batch", values, place)
        part = _batching(table)
        if part.name in parts:  # batches of two topics may have the same id
            raise table.wrong("into", "batch.into must be a different table for each [[batch]]")
        parts[part.name] = part
    return list(parts.values())


def _batching(table: TomlTable) -> Part:
    topic, into = table.text("topic"), table.text("into")
    table.check("topic", lambda: check_name(topic))
    boundaries = [f"--boundary={stream}" for stream in table.texts("boundaries") or ()]
    declared = table.texts("streams")
    if declared is not None:
        table.check("streams", lambda: declared_streams(declared))
    streams = [f"--stream={stream}" for stream in declared or ()]
    options = {"into": into, **_rule(table)}
    if boundaries and options["by"] == "id":
        raise table.wrong(
            "boundaries", "batch.boundaries can only be used with by = 'event_time' or by = 'rate', got by = 'id'"
        )
    if streams and options["by"] != "id":
        raise table.wrong("streams", f"batch.streams can only be used with by = 'id', got by = {options['by']!r}")
    skew, since = table.optional("max_skew"), table.optional("since")
    if skew is not None:
        table.check("max_skew", lambda: to_duration(skew, "max_skew"))
    if since is not None:
        table.check("since", lambda: to_time(since, "since", now=system_clock()))
    options |= _given(max_skew=skew, since=since)
    sources = [f"--source={source}" for source in table.texts("source") or ()]
    table.end()
    return Part(
        f"batch {into}", ("batch", topic, "--follow", *_words(options), *boundaries, *streams, *sources), _STOPS_WITHIN
    )


def _rule(table: TomlTable) -> dict[str, str]:
    by = table.optional("by") or "event_time"
    if by not in _RULES:
        raise table.wrong("by", f"batch.by must be one of {', '.join(_RULES)}, got {by!r}")
    if by == "id":
        header, delay = table.text("id_of"), table.text("max_delay")
        table.check("max_delay", lambda: IdRule.checked(header, delay))
        return {"by": by, "id_of": header, "max_delay": delay}
    if by == "rate":
        length, timeout = table.optional("batch_length") or "1s", table.duration_or_inf("timeout")
        longest = table.optional("longest")
        if longest is not None and length != "adaptive":
            raise table.wrong(
                "longest", f"batch.longest can only be used with batch_length = 'adaptive', got {length!r}"
            )
        shortest = table.check("longest", lambda: AdaptiveBatchLength(longest=longest)).batch_length
        first = shortest if length == "adaptive" else length
        table.check("batch_length" if timeout is None else "timeout", lambda: RateRule.checked(first, timeout))
        clocks = table.optional("clocks")
        table.check("clocks", lambda: checked_clocks(cast("Any", clocks or "as_sent")))
        disorder = table.optional("max_disorder")
        table.check("max_disorder", lambda: RateRule.checked(first, None, disorder or 0))
        silence = table.optional("forget_after")
        table.check("forget_after", lambda: checked_silence(silence))
        waits = None if timeout is None else str(timeout)
        options = _given(by=by, batch_length=length, longest=longest, timeout=waits, clocks=clocks)
        return options | _given(max_disorder=disorder, forget_after=silence)
    window, delay, lead = table.text("window"), table.text("max_delay"), table.optional("max_lead")
    conflict, gap = table.optional("on_conflict"), table.optional("gap")
    if conflict is not None and conflict not in CONFLICTS:
        raise table.wrong("on_conflict", f"batch.on_conflict must be one of {', '.join(CONFLICTS)}, got {conflict!r}")
    for key, value in (("window", window), ("max_delay", delay), ("max_lead", lead or "0s")):
        table.check(key, lambda key=key, value=value: to_duration(value, key))
    table.check("window", lambda: EventTimeRule.checked(window, delay, lead or "0s", cast("Any", conflict)))
    table.check("gap", lambda: EventTimeRule.checked(window, delay, gap=gap))
    return _given(by=by, window=window, max_delay=delay, max_lead=lead, gap=gap, on_conflict=conflict)


def _work(table: TomlTable) -> Part:
    handlers = table.texts("handlers")
    if not handlers:
        raise table.wrong("handlers", "work.handlers must name at least one handler, as MODULE:NAME@TABLE")
    for handler in handlers:
        place, at, name = handler.partition("@")
        if not at or not name or place.count(":") != 1 or place.startswith(("-", ":")) or place.endswith(":"):
            raise table.wrong("handlers", f"work.handlers must be MODULE:NAME@TABLE, got {handler!r}")
    numbers = {name: str(value) for name in ("concurrency", "processes") if (value := table.whole(name)) is not None}
    names = ("consumer", "where", "timeout", "grace", "metrics")
    texts = _given(**{name: table.optional(name) for name in names})
    for name in ("timeout", "grace"):
        if name in texts:
            table.check(name, lambda name=name: to_duration(texts[name], name))
    grace = to_duration(texts.get("grace", _GRACE), "grace") / 1_000_000_000
    table.end()
    words = ("work", *handlers, "--upkeep", *_words({**numbers, **texts}))
    return Part("work", words, grace + _AFTER_GRACE)


def _given(**options: str | None) -> dict[str, str]:
    return {name: value for name, value in options.items() if value is not None}


def _words(options: Mapping[str, str]) -> list[str]:
    """Write options as words of a command line; with ``=``, since a value may begin with a hyphen."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
