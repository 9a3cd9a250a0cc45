"""Reading the compact protocol of Thrift, in which Parquet writes its footers: into plain values, to be checked.

pyarrow reads footers too, but some that are damaged end the process there. This reader raises a ValueError instead.
"""

from __future__ import annotations

from typing import Any

_DEEPEST = 16
_TRUE, _FALSE, _BYTE, I16, I32, I64, _DOUBLE, BINARY, LIST, _SET, _MAP, STRUCT = range(1, 13)
_LONG = 15  # the size of a list that has its own number

Struct = dict[tuple[int, int], Any]
"""A struct: values by number and type. Of another type, a field is another one to Thrift, which passes over it."""


def read_struct(data: bytes) -> Struct:
    """Read one struct that takes all of the bytes; texts are bytes.

    Raises
    ------
    ValueError
        Where the bytes are no such struct.
    """
    reader = _Reader(data)
    fields = reader.struct(0)
    if reader.at != len(data):
        raise ValueError(f"{len(data) - reader.at} bytes follow the end of the struct")
    return fields


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def struct(self, depth: int) -> Struct:
        if depth > _DEEPEST:
            raise ValueError("structs are nested too deep")
        fields: Struct = {}
        number = 0
        while head := self._byte():
            step, kind = head >> 4, head & 15
            number = number + step if step else self._integer()
            if any(number == other for other, _ in fields):
                raise ValueError(f"field {number} comes twice")
            fields[number, kind] = None if kind in (_TRUE, _FALSE) else self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (I16, I32, I64):
            return self._integer()
        if kind == BINARY:
            return self._bytes(self._unsigned())
        if kind == STRUCT:
            return self.struct(depth + 1)
        if kind in (LIST, _SET):
            return self._list(depth)
        if kind in (_TRUE, _FALSE, _BYTE):  # in a list, a truth is a byte
            return self._byte()
        if kind == _DOUBLE:
            return self._bytes(8)
        raise ValueError(f"type {kind} is none that a footer has")

    def _list(self, depth: int) -> list[Any]:
        head = self._byte()
        size, kind = head >> 4, head & 15
        if size == _LONG:
            size = self._unsigned()
        if size > len(self._data) - self.at:
            raise ValueError(f"a list of {size} values is longer than what remains")
        return [self._value(kind, depth) for _ in range(size)]

    def _integer(self) -> int:
        value = self._unsigned()
        return value >> 1 ^ -(value & 1)

    def _unsigned(self) -> int:
        value = shift = 0
        while shift < 64:  # noqa: PLR2004  # no number has more bits
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:  # noqa: PLR2004  # the last byte of a number
                return value
            shift += 7
        raise ValueError("a number has more than 64 bits")

    def _byte(self) -> int:
        if self.at >= len(self._data):
            raise ValueError("it ends in the middle")
        self.at += 1
        return self._data[self.at - 1]

    def _bytes(self, size: int) -> bytes:
        if size > len(self._data) - self.at:
            raise ValueError("it ends in the middle")
        self.at += size
        return self._data[self.at - size : self.at]
