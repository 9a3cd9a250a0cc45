"""Reads SenML in JSON: a list of measurements that share base values (RFC 8428)."""

from __future__ import annotations

import base64
import binascii
import re
from decimal import Context, Decimal
from typing import cast

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError
from waterclock.ingest.mapping.json_values import JsonNumber, read_json
from waterclock.ingest.mapping.mapped import Reading
from waterclock.ingest.mapping.times import LONGEST_NUMBER, check_number, parse_offset
from waterclock.time import MAX_NS, MIN_NS

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9\-:./_]*")
_RELATIVE = 1 << 28
"""Seconds: smaller times are relative to now (RFC 8428, section 4.5.3)."""

_VERSION = 10
_SECOND = 1_000_000_000
_EXACT = Context(prec=4 * LONGEST_NUMBER)
_VALUES = {"v": "a number", "vs": "a string", "vb": "a boolean", "vd": "a string", "s": "a number"}


def map_senml(source: str | None, payload: bytes, received: int) -> list[Reading]:
    """Map one payload, with base values resolved.

    Parameters
    ----------
    source
        The source, and each full name is a stream; None: the base name is the source, and the rest the stream.
    received
        When it was received, ns, from which relative times count.

    Returns
    -------
    list
        One reading for each record that has a value. event_time is None if the record's time is "now".
    """
    content = read_json(payload)
    if not isinstance(content, list) or not content:
        raise InvalidArgumentError(f"payload must be a JSON list of SenML records, got {quoted(payload)}")
    base = _Base()
    readings = [reading for record in cast("list[object]", content) for reading in base.read(record, source, received)]
    if not readings:
        raise InvalidArgumentError(f"payload must have a record with a value, got {quoted(payload)}")
    return readings


class _Base:
    """The base values, which apply from the record that sets them."""

    def __init__(self) -> None:
        self._name, self._unit = "", ""
        self._time, self._value, self._sum = 0, "0", "0"

    def read(self, record: object, source: str | None, received: int) -> list[Reading]:
        if not isinstance(record, dict):
            raise InvalidArgumentError(f"a SenML record must be an object, got {quoted(record)}")
        fields = cast("dict[str, object]", record)
        self._set(fields)
        given = [name for name in _VALUES if name in fields]
        if not given:
            return []
        if len(given) > 1 and given[1:] != ["s"]:
            raise InvalidArgumentError(f"a SenML record must have one value, got {', '.join(given)}")
        own = _text(fields, "n")
        name = self._name + own
        if _NAME.fullmatch(name) is None:
            raise InvalidArgumentError(f"a SenML name must consist of letters, digits and -:./_, got {quoted(name)}")
        unit = _text(fields, "u") or self._unit
        if source is None:
            source, stream = self._name.rstrip("-:./_") or name, own or name
        else:
            stream = name
        time = self._time + (parse_offset(_number(fields, "t")) if "t" in fields else 0)
        payload = self._payload(given[0], fields)
        return [Reading(source, stream, _moment(time, received), payload, {"unit": unit} if unit else None)]

    def _set(self, fields: dict[str, object]) -> None:
        for name in fields:
            if name.endswith("_"):
                raise InvalidArgumentError(
                    f"cannot read the SenML record: its mandatory field {quoted(name)} is not supported"
                )
        if "bver" in fields and int(Decimal(_number(fields, "bver"))) > _VERSION:
            raise InvalidArgumentError(f"SenML version must be at most {_VERSION}, got {_number(fields, 'bver')}")
        self._name = _text(fields, "bn") if "bn" in fields else self._name
        self._unit = _text(fields, "bu") if "bu" in fields else self._unit
        self._time = parse_offset(_number(fields, "bt")) if "bt" in fields else self._time
        self._value = _number(fields, "bv") if "bv" in fields else self._value
        self._sum = _number(fields, "bs") if "bs" in fields else self._sum

    def _payload(self, kind: str, fields: dict[str, object]) -> bytes:
        value = fields[kind]
        match kind, value:
            case "v", JsonNumber():
                return _added(_number(fields, "v"), self._value)
            case "s", JsonNumber():
                return _added(_number(fields, "s"), self._sum)
            case "vs", str():
                return _encoded(value)
            case "vb", bool():
                return b"true" if value else b"false"
            case "vd", str():
                try:
                    return base64.b64decode(_encoded(value) + b"=" * (-len(value) % 4), altchars=b"-_", validate=True)
                except binascii.Error:
                    raise InvalidArgumentError(f"SenML vd must be base64url, got {quoted(value)}") from None
            case _:
                raise InvalidArgumentError(f"SenML {kind} must be {_VALUES[kind]}, got {quoted(value)}")


def _moment(time: int, received: int) -> int | None:
    if time == 0:
        return None
    moment = received + time if time < _RELATIVE * _SECOND else time
    if not MIN_NS <= moment <= MAX_NS:
        raise InvalidArgumentError(f"SenML time must be before 2262-04-11, got {time} ns")
    return moment


def _added(value: str, base: str) -> bytes:
    if base == "0":
        return value.encode()  # as it was written
    return str(_EXACT.add(Decimal(value), Decimal(base))).encode()


def _text(fields: dict[str, object], name: str) -> str:
    value = fields.get(name, "")
    if not isinstance(value, str):
        raise InvalidArgumentError(f"SenML {name} must be a string, got {quoted(value)}")
    _encoded(value)
    return value


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(
            f"SenML text must be valid Unicode, got a lone surrogate in {quoted(text)}"
        ) from None


def _number(fields: dict[str, object], name: str) -> str:
    value = fields[name]
    if not isinstance(value, JsonNumber):
        raise InvalidArgumentError(f"SenML {name} must be a number, got {quoted(value)}")
    check_number(value.text, f"SenML {name}")
    return value.text
