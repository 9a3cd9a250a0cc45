"""The benchmarks that describe a pipeline build one."""

from __future__ import annotations

from pathlib import Path

from benchmarks.spark import payloads


def test_the_benchmark_of_payloads_builds_its_pipeline(tmp_path: Path) -> None:
    assert payloads.pipeline(tmp_path / "topic", "table").name == "benchmark"
