"""Reads the format ``ess``: the time and source name from FlatBuffers of the European Spallation Source.

The source of a message is the instrument in the name of the Kafka topic, such as ``dream`` in ``dream_detector``. The
stream is the Kafka topic followed by the FlatBuffer's source name, because the same source name may occur in two
topics.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError
from waterclock.ingest.mapping.mapped import Reading
from waterclock.time import MAX_NS, MIN_NS

RUN_STREAM = "run"
"""Stream of the starts and stops of runs, at which batches may be cut."""

_SCHEMA = slice(4, 8)
"""Bytes of a FlatBuffer that name its schema."""

_STATUS = frozenset({"al00", "ep01", "x5f2"})
"""Schemas of status messages, which hold no measurements."""

_MILLISECOND = 1_000_000

_REFERENCE_TIME = "reference_time"


def map_ess(path: str, payload: bytes) -> list[Reading]:
    """Map a record to one message, or to none if it is a status message.

    Raises `InvalidArgumentError` if the schema is unknown, or the value does not decode.
    """
    topic = path.partition("/")[0]
    instrument = topic.partition("_")[0]
    schema = payload[_SCHEMA].decode("ascii", "replace")
    if schema in _STATUS:
        return []
    if schema not in _READERS:
        raise InvalidArgumentError(
            f"schema must be one of {', '.join(sorted({*_READERS, *_STATUS}))}, got {quoted(schema)}"
        )
    try:
        decoded = _decode(schema, payload)
        name, time, headers = _READERS[schema](decoded)
    except ImportError:
        raise
    except Exception as error:  # noqa: BLE001  # damaged FlatBuffers raise whatever their bytes lead to
        raise InvalidArgumentError(f"cannot decode {schema}: {type(error).__name__}: {error}") from None
    if time is not None and not MIN_NS <= time <= MAX_NS:
        raise InvalidArgumentError(f"the time of {schema} must fit in 64-bit nanoseconds, got {time}")
    if not name and schema not in _OF_RUNS:
        raise InvalidArgumentError(f"the source_name of {schema} must not be empty")
    stream = RUN_STREAM if schema in _OF_RUNS else f"{topic}/{name}"
    return [Reading(instrument, stream, time, payload, {"ess.schema": schema, **headers})]


def _decode(schema: str, payload: bytes) -> Any:
    return import_module("streaming_data_types").DESERIALISERS[schema](payload)


_Read = tuple[str, int | None, dict[str, str]]
"""Source name, event time, ns, and headers."""


def _read_ev44(decoded: Any) -> _Read:
    times = decoded.reference_time
    return decoded.source_name, (int(times[-1]) if len(times) else None), {}


def _read_da00(decoded: Any) -> _Read:
    reference = next((each.data for each in decoded.data if each.name == _REFERENCE_TIME), None)
    if reference is not None and getattr(reference, "size", 0):
        return decoded.source_name, int(reference.reshape(-1)[-1]), {}
    return decoded.source_name, int(decoded.timestamp_ns), {}


def _read_f144(decoded: Any) -> _Read:
    return decoded.source_name, int(decoded.timestamp_unix_ns), {}


def _read_ad00(decoded: Any) -> _Read:
    return decoded.source_name, int(decoded.timestamp_ns), {}


def _read_se00(decoded: Any) -> _Read:
    return decoded.name, int(decoded.timestamp_unix_ns), {}


def _read_tdct(decoded: Any) -> _Read:
    return decoded.name, int(decoded.timestamps[-1]), {}


def _read_pl72(decoded: Any) -> _Read:
    return "", int(decoded.start_time) * _MILLISECOND, {"ess.run": decoded.run_name, "ess.job": decoded.job_id}


def _read_6s4t(decoded: Any) -> _Read:
    # A stop without a time means now: Kafka's time of the record.
    time = int(decoded.stop_time) * _MILLISECOND or None
    return "", time, {"ess.run": decoded.run_name, "ess.job": decoded.job_id}


_OF_RUNS = frozenset({"pl72", "6s4t"})

_READERS: dict[str, Callable[[Any], _Read]] = {
    "6s4t": _read_6s4t,
    "ad00": _read_ad00,
    "da00": _read_da00,
    "ev44": _read_ev44,
    "f144": _read_f144,
    "pl72": _read_pl72,
    "se00": _read_se00,
    "tdct": _read_tdct,
}
