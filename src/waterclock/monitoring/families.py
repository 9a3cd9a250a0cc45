"""Builds metric families with a bounded number of labels. Names beyond the limit share one label."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from waterclock._support.quoting import in_a_line

Family = CounterMetricFamily | GaugeMetricFamily

OTHER = "other"  # the label of names above the limit
LABELS = 100  # how many names of each kind have a label of their own unless an option says otherwise
_LONGEST = 120  # characters of a label


def labels_of(names: Iterable[str], limit: int) -> dict[str, str]:
    """Return the label of each name: the first ``limit`` names have their own, the others `OTHER`."""
    known: dict[str, str] = {}
    for name in names:
        if name not in known:
            known[name] = label(name) if len(known) < limit else OTHER
    return known


def label(name: str) -> str:
    """Return a name as a label: shortened, and with control characters and lone surrogates escaped."""
    return in_a_line(name)[:_LONGEST]


class KnownLabels:
    """Labels of names in order of arrival: the first ones have their own. Not thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: set[str] = set()

    def of(self, name: str) -> str:
        own = label(name)
        if own not in self._known:
            if len(self._known) >= self._limit:
                return OTHER
            self._known.add(own)
        return own


Samples = Iterable[tuple[Sequence[str], float]]
Join = Callable[[float, float], float]
_Kind = TypeVar("_Kind", CounterMetricFamily, GaugeMetricFamily)


def gauge(
    name: str, means: str, labels: Sequence[str], samples: Samples, join: Join = float.__add__
) -> GaugeMetricFamily:
    """Build a gauge; samples with the same labels are joined, because a second one would make the answer invalid."""
    return _filled(GaugeMetricFamily(name, means, labels=labels), samples, join)


def counter(name: str, means: str, labels: Sequence[str], samples: Samples) -> CounterMetricFamily:
    """Build a counter; samples with the same labels are added."""
    return _filled(CounterMetricFamily(name, means, labels=labels), samples, float.__add__)


def _filled(family: _Kind, samples: Samples, join: Join) -> _Kind:
    joined: dict[tuple[str, ...], float] = {}
    for values, number in samples:
        key = tuple(values)
        joined[key] = join(joined[key], float(number)) if key in joined else float(number)
    for key, number in joined.items():
        family.add_metric(key, number)
    return family
