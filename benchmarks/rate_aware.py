"""Batching by rate: messages a second of the class and the columnar form, and what catching up costs a message."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from waterclock.batching.rate_aware import RateAwareBatcher
from waterclock.batching.rate_columnar import RateAwareColumns
from waterclock.message import Message

SECOND = 1_000_000_000
T0 = 1_700_000_000 * SECOND
RESULTS = Path(__file__).parent / "results" / "rate_aware.json"
CALLS = (1, 10, 1000)
# What a well-known pure-Python implementation of the same document does on this class of machine, messages a second.
ELSEWHERE = {1: 130_000, 10: 300_000, 1000: 440_000}
RUNS = 3
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


def best(run: Callable[[], None]) -> float:
    """Measure the CPU seconds of the fastest run: it is one thread, and other processes share the machine."""
    taken: list[float] = []
    for _ in range(RUNS):
        began = time.process_time()
        run()
        taken.append(time.process_time() - began)
    return min(taken)


def measure_class(workload: Workload, size: int) -> float:
    messages = messages_of(*workload)
    calls = [messages[k : k + size] for k in range(0, len(messages), size)]

    def run() -> None:
        add = RateAwareBatcher(gated=gated).add
        for call in calls:
            add(call)

    return len(messages) / best(run)


def measure_columns(workload: Workload, size: int) -> float:
    names, codes, times = workload
    bounds = np.append(np.arange(0, len(times), size), len(times))
    return len(times) / best(lambda: RateAwareColumns(names, gated=gated).add(codes, times, bounds) and None)


def measure_catching_up(seconds: int) -> dict[str, float]:
    names, codes, times = regular({"detector": 14, "monitor": 5, "log": 10}, 29 * (20 + seconds))
    known = 29 * 20  # the rates are known before the backlog comes
    messages = messages_of(names, codes, times)
    backlog = len(messages) - known
    taken: dict[str, list[float]] = {"class": [], "columnar": []}
    for _ in range(RUNS):
        batcher = RateAwareBatcher(gated=gated)
        for message in messages[:known]:
            batcher.add([message])
        columns = RateAwareColumns(names, gated=gated)
        columns.add(codes[:known], times[:known], np.arange(known + 1))
        for form, run in (
            ("class", lambda batcher=batcher: batcher.add(messages[known:])),
            ("columnar", lambda columns=columns: columns.add(codes[known:], times[known:])),
        ):
            began = time.process_time()
            run()
            taken[form].append((time.process_time() - began) / backlog * 1e6)
    return {form: min(each) for form, each in taken.items()}


def main() -> None:
    speeds: list[dict[str, Any]] = []
    of_class, of_columns = dict(workloads(CLASS_MESSAGES)), dict(workloads(COLUMN_MESSAGES))
    for name, workload in of_class.items():
        for size in CALLS:
            row = {"workload": name, "call": size, "elsewhere": ELSEWHERE[size]}
            row["class"] = round(measure_class(workload, size))
            row["columnar"] = round(measure_columns(of_columns[name], size))
            speeds.append(row)
            ratios = f"{row['class'] / ELSEWHERE[size]:.1f}x and {row['columnar'] / ELSEWHERE[size]:.0f}x"
            print(f"{name}, calls of {size}: {row['class']:,}/s, columnar {row['columnar']:,}/s ({ratios})", flush=True)
    catching_up: list[dict[str, Any]] = []
    for seconds in (125, 250, 500, 1000):
        each = measure_catching_up(seconds)
        catching_up.append({"seconds": seconds, **{form: round(value, 3) for form, value in each.items()}})
        print(
            f"catching up {seconds} s in one call: {each['class']:.2f} µs a message, columnar {each['columnar']:.3f} µs"
        )
    machine = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "measured": "CPU seconds, one thread",
    }
    RESULTS.parent.mkdir(exist_ok=True)
    document = {"machine": machine, "messages_per_second": speeds, "catching_up_us_per_message": catching_up}
    RESULTS.write_text(json.dumps(document, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
