"""The lags of an append: heartbeats that repeat an old time count as none."""

from __future__ import annotations

from typing import cast

from waterclock.ingest.storing.append_plan import AppendPlan
from waterclock.ingest.stream_lags import LagRange
from waterclock.message import Message
from waterclock.topics.topic import Topic

SECOND = 10**9


def lags(received: int, latest: dict[tuple[str, str], int], *times: int) -> dict[tuple[str, str], LagRange]:
    plan = AppendPlan(received, cast("Topic", None), latest)
    plan.add("telemetry", [Message("odin", "motor", time) for time in times])
    return plan.stored.lags


def test_a_heartbeat_that_repeats_its_last_time_does_not_count_as_late() -> None:
    latest: dict[tuple[str, str], int] = {}
    assert lags(11 * SECOND, latest, 10 * SECOND) == {("odin", "motor"): LagRange(SECOND, SECOND)}
    assert lags(90 * SECOND, latest, 10 * SECOND, 10 * SECOND) == {}
    assert lags(95 * SECOND, latest, 10 * SECOND, 94 * SECOND) == {("odin", "motor"): LagRange(SECOND, SECOND)}
    # An older one is no heartbeat.
    assert lags(96 * SECOND, latest, 10 * SECOND) == {("odin", "motor"): LagRange(86 * SECOND, 86 * SECOND)}
