"""Reads messages that collectd publishes over MQTT: one at a time, or whole columns of them. Pure.

The topic is ``PREFIX/HOST/PLUGIN/TYPE`` and the payload ``event_time:value[:value…]``, the time in seconds with
decimals, often followed by a NUL byte (collectd's plugin ``write_mqtt``; its identifiers and its plain-text values are
described in collectd-unixsock(5), "PUTVAL").
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from waterclock._support.quoting import quoted
from waterclock.arrow import MESSAGE_SCHEMA
from waterclock.errors import InvalidArgumentError
from waterclock.message import Message
from waterclock.time import MAX_NS, Time

_SECOND = 1_000_000_000

_VALUE = rb"(?:U|[-+]?(?:nan|inf|[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?))"
_PAYLOAD = re.compile(rb"([0-9]{1,10})(?:\.([0-9]{1,9}))?(?::" + _VALUE + rb")+\x00?")


def parse_message(topic: str, payload: bytes, *, receive_time: Time | None = None, prefix: str = "collectd") -> Message:
    r"""Convert one MQTT message of collectd to ours.

    Parameters
    ----------
    topic
        The MQTT topic, for example ``collectd/press-01/cpu-0/cpu-idle``.
    payload
        The MQTT payload, for example ``b"1795250333.149:98.5\x00"``. The message keeps these bytes unchanged.
    receive_time
        When it was received; see `waterclock.time.to_time`.
    prefix
        The text before the host: the option ``Prefix`` of collectd's plugin ``write_mqtt``. It may hold slashes; an
        empty one means that the topic begins with the host.

    Returns
    -------
    Message
        source is the host, stream is ``PLUGIN/TYPE``, event_time is exact.

    Raises
    ------
    InvalidArgumentError
        For a topic or payload of another form, naming it.
    """
    source, stream = parse_topic(topic, prefix=prefix)
    return Message(source, stream, collectd_time(payload), payload, receive_time=receive_time)


def parse_topic(topic: str, *, prefix: str = "collectd") -> tuple[str, str]:
    """Split a topic into source (the host) and stream (``PLUGIN/TYPE``).

    Raises
    ------
    InvalidArgumentError
        For a topic of another form, or with another prefix.
    """
    lead = f"{prefix}/" if prefix else ""
    host, _, stream = topic.removeprefix(lead).partition("/")
    plugin, _, kind = stream.partition("/")
    if not topic.startswith(lead) or not host or not plugin or not kind or "/" in kind:
        raise InvalidArgumentError(
            f"topic must be {lead}HOST/PLUGIN/TYPE, got {quoted(topic)}. Is collectd's Prefix set to {quoted(prefix)}?"
        )
    return host, stream


def parse_columns(
    topics: pa.ChunkedArray, payloads: pa.ChunkedArray, receive_times: pa.ChunkedArray, *, prefix: str = "collectd"
) -> pa.Table:
    """Convert many MQTT messages of collectd to ours, column by column.

    Parameters
    ----------
    topics, payloads
        Text and bytes, as for `parse_message`, without nulls.
    receive_times
        int64, ns.
    prefix
        As in `parse_message`.

    Returns
    -------
    pyarrow.Table
        In `waterclock.arrow.MESSAGE_SCHEMA`, a row per message, in the order given.

    Raises
    ------
    InvalidArgumentError
        For the first topic or payload of another form, naming it.
    """
    sources, streams = _split_topics(topics, prefix)
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


def _split_topics(topics: pa.ChunkedArray, prefix: str) -> tuple[pa.Array, pa.Array]:
    # A recording repeats a few hundred topics, so each is split once and looked up by its dictionary index.
    encoded = topics.cast(pa.string()).combine_chunks().dictionary_encode()
    pairs = [parse_topic(topic, prefix=prefix) for topic in encoded.dictionary.to_pylist()]
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
        raise InvalidArgumentError(f"time must be before 2262-04-11, got {quoted(payload)}. Is its unit seconds?")
    return time
