"""FlatBuffers of ESS become messages by instrument, topic and source name, at their own times."""

from __future__ import annotations

import numpy as np
import pytest
import streaming_data_types as ess
from streaming_data_types.dataarray_da00 import Variable

from waterclock.errors import InvalidArgumentError
from waterclock.ingest.kafka.record import KafkaRule, Record
from waterclock.message import Message

T = 1_750_000_000_123_456_789
KAFKA_MS = T // 1_000_000 + 5
NOW = T + 60_000_000_000


def mapped(payload: bytes, topic: str = "dream_detector") -> list[Message]:
    rule = KafkaRule.checked(topic, "telemetry", "ess")
    return rule.map(Record(topic, 0, 1, payload, time=KAFKA_MS), NOW)


def da00(*variables: Variable) -> bytes:
    signal = Variable(name="signal", data=np.array([1.0, 2.0]), axes=["x"])
    return ess.serialise_da00("bank", T + 9, [signal, *variables])


REFERENCE = Variable(name="reference_time", data=np.array([T - 1, T], dtype=np.int64), axes=["event"])


@pytest.mark.parametrize(
    ("payload", "name", "time"),
    [
        (ess.serialise_ev44("bank", 1, [T - 5, T], [0, 1], [10, 20], [1, 2]), "bank", T),
        (ess.serialise_ev44("bank", 1, [], [], [], []), "bank", KAFKA_MS * 1_000_000),
        (da00(REFERENCE), "bank", T),
        (da00(), "bank", T + 9),
        (ess.serialise_f144("motor", 1.5, T), "motor", T),
        (ess.serialise_ad00("camera", 1, T, np.zeros((2, 2))), "camera", T),
        (ess.serialise_se00("adc", 1, T, 10, 1, np.array([1, 2])), "adc", T),
        (ess.serialise_tdct("chopper", np.array([T - 7, T], dtype=np.uint64)), "chopper", T),
    ],
    ids=["ev44", "empty ev44", "da00 with reference_time", "da00", "f144", "ad00", "se00", "tdct"],
)
def test_a_measurement_is_at_its_own_time(payload: bytes, name: str, time: int) -> None:
    [message] = mapped(payload)
    assert (message.source, message.stream) == ("dream", f"dream_detector/{name}")
    assert (message.event_time, message.publish_time, message.payload) == (time, KAFKA_MS * 1_000_000, payload)
    assert message.headers == {"ess.schema": payload[4:8].decode()}


def test_runs_are_a_stream_of_their_own() -> None:
    start = ess.serialise_pl72("job", "file.nxs", start_time=T // 1_000_000, run_name="42")
    stop = ess.serialise_6s4t("job", "42", stop_time=T // 1_000_000 + 1)
    [began], [ended] = mapped(start, "dream_filewriter"), mapped(stop, "dream_filewriter")
    assert (began.source, began.stream, began.event_time) == ("dream", "run", T // 1_000_000 * 1_000_000)
    assert (ended.source, ended.stream, ended.event_time) == ("dream", "run", (T // 1_000_000 + 1) * 1_000_000)
    assert began.headers == {"ess.schema": "pl72", "ess.run": "42", "ess.job": "job"}


def test_status_is_ignored() -> None:
    assert mapped(ess.serialise_al00("motor", T, ess.alarm_al00.Severity.OK, "fine")) == []
    assert mapped(ess.serialise_x5f2("service", "1", "id", "host", 1, 1_000, "{}")) == []


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"", "schema must be one of 6s4t, ad00"),
        (b"1234567", "schema must be one of"),
        (b"\0\0\0\0hs01", "got 'hs01'"),
        (b"\xff\xff\xff\x7fev44" + bytes(8), "cannot decode ev44"),
        (ess.serialise_f144("motor", 1.5, T)[:20], "cannot decode f144"),
        (ess.serialise_tdct("chopper", np.array([2**63], dtype=np.uint64)), "must fit in 64-bit nanoseconds"),
        (ess.serialise_f144("", 1.5, T), "source_name"),
    ],
)
def test_what_does_not_decode_is_refused(payload: bytes, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        mapped(payload)
