"""Reads collectd's MQTT messages, one at a time or as columns of topics and payloads.

The topic is ``collectd/HOST/PLUGIN/TYPE``, and the payload is ``event_time:value[:value…]``, as collectd's plugin
``write_mqtt`` writes it. The time is in seconds with decimals, and a NUL byte often follows the values. The manual page
collectd-unixsock(5), "PUTVAL", describes the identifiers and values.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from waterclock._support.quoting import quoted
from waterclock.arrow import MESSAGE_SCHEMA
from waterclock.errors import InvalidArgumentError
from waterclock.time import MAX_NS

_SECOND = 1_000_000_000
_LEAD = "collectd/"

_VALUE = rb"(?:U|[-+]?(?:nan|inf|[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?))"
_PAYLOAD = re.compile(rb"([0-9]{1,10})(?:\.([0-9]{1,9}))?(?::" + _VALUE + rb")+\x00?")


def parse_topic(topic: str) -> tuple[str, str]:
    """Split a topic into source (the host) and stream (``PLUGIN/TYPE``).

    Raises
    ------
    InvalidArgumentError
        For a topic of another form.
    """
    host, _, stream = topic.removeprefix(_LEAD).partition("/")
    plugin, _, kind = stream.partition("/")
    if not topic.startswith(_LEAD) or not host or not plugin or not kind or "/" in kind:
        raise InvalidArgumentError(f"topic must be {_LEAD}HOST/PLUGIN/TYPE, got {quoted(topic)}")
    return host, stream


def parse_columns(topics: pa.ChunkedArray, payloads: pa.ChunkedArray, receive_times: pa.ChunkedArray) -> pa.Table:
    """Convert many MQTT messages of collectd to ours, column by column.

    Parameters
    ----------
    topics, payloads
        MQTT topics, such as ``collectd/press-01/cpu-0/cpu-idle``, and MQTT payloads as bytes; without nulls.
    receive_times
        int64, ns.

    Returns
    -------
    pyarrow.Table
        In `waterclock.arrow.MESSAGE_SCHEMA`, a row per message, in the order given: source is the host, stream is
        ``PLUGIN/TYPE``.

    Raises
    ------
    InvalidArgumentError
        For the first topic or payload of another form, naming it.
    """
    sources, streams = _split_topics(topics)
    missing = {name: pa.nulls(len(topics), MESSAGE_SCHEMA.field(name).type) for name in ("publish_time", "headers")}
    columns: dict[str, Any] = {
        "source": sources,
        "stream": streams,
        "event_time": pa.array([collectd_time(payload) for payload in payloads.to_pylist()], pa.int64()),
        "receive_time": receive_times,
        "payload": payloads,
        **missing,
    }
    return pa.table([columns[name] for name in MESSAGE_SCHEMA.names], schema=MESSAGE_SCHEMA)


def _split_topics(topics: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    # A recording repeats a few hundred topics, so each is split once and looked up by its dictionary index.
    encoded = topics.cast(pa.string()).combine_chunks().dictionary_encode()
    pairs = [parse_topic(topic) for topic in encoded.dictionary.to_pylist()]
    sources = pa.array([source for source, _ in pairs], pa.string())
    streams = pa.array([stream for _, stream in pairs], pa.string())
    return sources.take(encoded.indices), streams.take(encoded.indices)


def collectd_time(payload: bytes) -> int:
    """Return the event time of a payload, ns.

    Raises
    ------
    InvalidArgumentError
        For a payload of another form.
    """
    match = _PAYLOAD.fullmatch(payload)
    if match is None:
        raise InvalidArgumentError(
            f"payload must be collectd's time:value[:value…] with the time in seconds, got {quoted(payload)}"
        )
    time = int(match[1]) * _SECOND + int((match[2] or b"").ljust(9, b"0"))
    if time > MAX_NS:
        raise InvalidArgumentError(f"time must be before 2262-04-11, got {quoted(payload)}. Is the time in seconds?")
    return time
