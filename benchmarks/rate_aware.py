"""Batching by rate: messages a second of the class and the columnar form, and what catching up costs a message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.measure import in_turns, write_results
from waterclock.batching.rate.by_column.columns import RateAwareColumns
from waterclock.batching.rate.by_message.batcher import RateAwareBatcher
from waterclock.message import Message

SECOND = 1_000_000_000
T0 = 1_700_000_000 * SECOND
CALLS = (1, 10, 1000)
# What a well-known pure-Python implementation of the same document does at most on this class of machine, messages a
# second; at calls of 1,000 it does as little as 30,000, where a call brings many windows.
ELSEWHERE = {1: 130_000, 10: 300_000, 1000: 440_000}
ROUNDS = 3
CLASS_MESSAGES = 200_000
COLUMN_MESSAGES = 2_000_000

Workload = tuple[list[str], Any, Any]


def regular(rates: dict[str, int], count: int) -> Workload:
    """Lay out ``count`` messages of streams at these rates (Hz), each stream a millisecond after the one before."""
    seconds = count // sum(rates.values()) + 1
    names = list(rates)
    times = [
        T0 + number * 1_000_000 + np.arange(rates[n] * seconds) * SECOND // rates[n] for number, n in enumerate(names)
    ]
    codes = [np.full(len(each), number, np.int32) for number, each in enumerate(times)]
    order = np.argsort(np.concatenate(times), kind="stable")[:count]
    return names, np.concatenate(codes)[order], np.concatenate(times)[order]


def workloads(count: int) -> Iterator[tuple[str, Workload]]:
    yield "14 Hz detector, 5 Hz monitor, 10 Hz log", regular({"detector": 14, "monitor": 5, "log": 10}, count)
    yield "200 streams at 14 Hz", regular({f"stream {k:03d}": 14 for k in range(200)}, count)
    yield "one stream at 1 kHz", regular({"detector": 1000}, count)


def gated(stream: str) -> bool:
    return stream != "log"


def messages_of(names: list[str], codes: Any, times: Any) -> list[Message]:
    pairs = zip(codes.tolist(), times.tolist(), strict=True)
    return [Message.trusted("s", names[code], event_time, b"", None, None, None, None) for code, event_time in pairs]


def replay(messages: list[Message], size: int) -> Callable[[], None]:
    calls = [messages[k : k + size] for k in range(0, len(messages), size)]

    def run() -> None:
        add = RateAwareBatcher(gated=gated).add
        for call in calls:
            add(call)

    return run


def replay_columns(workload: Workload, size: int) -> Callable[[], object]:
    names, codes, times = workload
    bounds = np.append(np.arange(0, len(times), size), len(times))
    return lambda: RateAwareColumns(names, gated=gated).add(codes, times, bounds)


def measure_speed(small: Workload, large: Workload, size: int) -> dict[str, Any]:
    messages = messages_of(*small)
    seconds = in_turns({"class": replay(messages, size), "columnar": replay_columns(large, size)}, ROUNDS)
    speed = {"class": len(messages) / seconds["class"], "columnar": len(large[1]) / seconds["columnar"]}
    return {
        "call": size,
        "elsewhere_per_second": ELSEWHERE[size],
        **{f"{form}_per_second": round(value) for form, value in speed.items()},
        **{f"{form}_to_elsewhere": round(value / ELSEWHERE[size], 1) for form, value in speed.items()},
    }


def measure_catching_up(seconds: int) -> dict[str, Any]:
    """Time one call with a backlog, to a batcher that knows the rates, in microseconds a message."""
    known = 29 * 20
    names, codes, times = regular({"detector": 14, "monitor": 5, "log": 10}, known + 29 * seconds)
    messages = messages_of(names, codes, times)
    batcher = RateAwareBatcher(gated=gated)
    for message in messages[:known]:
        batcher.add([message])
    columns = RateAwareColumns(names, gated=gated)
    columns.add(codes[:known], times[:known], np.arange(known + 1))
    state, columns_state = batcher.state(), columns.state()
    restored = [RateAwareBatcher.restore(state, gated=gated) for _ in range(ROUNDS + 1)]
    restored_columns = [RateAwareColumns.restore(columns_state) for _ in range(ROUNDS + 1)]
    taken = in_turns(
        {
            "class": lambda: restored.pop().add(messages[known:]),
            "columnar": lambda: restored_columns.pop().add(codes[known:], times[known:]),
        },
        ROUNDS,
    )
    backlog = len(messages) - known
    return {"seconds": seconds, **{form: round(value / backlog * 1e6, 3) for form, value in taken.items()}}


def main() -> None:
    speeds: dict[str, list[dict[str, Any]]] = {}
    large = dict(workloads(COLUMN_MESSAGES))
    for name, small in workloads(CLASS_MESSAGES):
        speeds[name] = []
        for size in CALLS:
            row = measure_speed(small, large[name], size)
            speeds[name].append(row)
            print(
                f"{name}, calls of {size}: {row['class_per_second']:,}/s ({row['class_to_elsewhere']} times elsewhere),"
                f" columnar {row['columnar_per_second']:,}/s ({row['columnar_to_elsewhere']} times)",
                flush=True,
            )
    catching_up = [measure_catching_up(seconds) for seconds in (125, 250, 500, 1000)]
    for row in catching_up:
        print(f"catching up {row['seconds']} s in one call: {row['class']} µs a message, columnar {row['columnar']} µs")
    figures = {"messages_per_second": speeds, "catching_up_us_per_message": catching_up}
    print(f"wrote {write_results('rate_aware', figures, ('waterclock', 'numba', 'numpy'))}")


if __name__ == "__main__":
    main()
