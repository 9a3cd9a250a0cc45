"""What tests of metrics share: a scrape, as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

Scraped = dict[tuple[str, ...], float]
"""The value of each sample, by its name and the values of its labels in the order of their names."""


def read(text: str) -> Scraped:
    """Parse an answer as Prometheus does; a sample that is there twice would make it refuse all."""
    found: Scraped = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, *(sample.labels[name] for name in sorted(sample.labels)))
            assert key not in found
            found[key] = sample.value
    return found


@pytest.fixture
def scrape() -> Callable[[Collector], Scraped]:
    def scraped(collector: Collector) -> Scraped:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(collector)
        return read(generate_latest(registry).decode())

    return scraped
