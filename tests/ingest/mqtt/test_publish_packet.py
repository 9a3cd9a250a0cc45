"""PUBLISH packets are read as MQTT writes them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.ingest.mqtt.publish_packet import PublishPacket, read_publish


def length(number: int) -> bytes:
    """Write a length in as many bytes of 7 bits as it takes."""
    written = bytearray()
    while True:
        number, low = divmod(number, 128)
        written.append(low | (128 if number else 0))
        if not number:
            return bytes(written)


def body(packet: PublishPacket, properties: bytes | None) -> bytes:
    head = struct.pack(">H", len(packet.topic)) + packet.topic
    head += struct.pack(">H", packet.packet_id) if packet.qos else b""
    head += b"" if properties is None else length(len(properties)) + properties
    return head + packet.payload


PACKETS = st.builds(
    lambda topic, payload, packet_id, qos, dup, retain: PublishPacket(
        topic, payload, packet_id if qos else 0, qos, dup, retain
    ),
    st.binary(max_size=300),
    st.binary(max_size=300),
    st.integers(1, 65_535),
    st.integers(0, 1),
    st.booleans(),
    st.booleans(),
)


@given(PACKETS, st.none() | st.binary(max_size=300))
def test_a_packet_is_read_as_it_was_written(packet: PublishPacket, properties: bytes | None) -> None:
    first = 0x30 | packet.is_repeat << 3 | packet.qos << 1 | packet.is_retained
    assert read_publish(first, body(packet, properties), has_properties=properties is not None) == packet


@pytest.mark.parametrize(
    "cut", [b"", b"\0", b"\0\5t", b"\0\1t", b"\0\1t\0", b"\0\1t\0\1", b"\0\1t\0\1\5", b"\0\1t\0\1\x80"]
)
def test_a_packet_that_ends_too_soon_is_refused(cut: bytes) -> None:
    with pytest.raises(ValueError, match="is truncated"):
        read_publish(0x32, cut, has_properties=True)
