"""The dashboard, the alert rules and the how-to page name metrics that exist, with labels that they have."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.metrics_core import Metric

import waterclock as wc
from waterclock.ingest.metrics import IngestMetrics
from waterclock.ingest.progress import IngestProgress
from waterclock.ingest.stream_lags import LagRange, StreamLags
from waterclock.monitoring.database_metrics import DatabaseMetrics
from waterclock.spark.pipeline.progress import Progress
from waterclock.spark.pipeline.reporting import families
from waterclock.tables.consumers.delivery import Delivery
from waterclock.work.ground.counts import Counts
from waterclock.work.metrics import UpkeepMetrics, WorkerMetrics
from waterclock.work.upkeep import Task, Upkeep

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "deploy" / "grafana-dashboard.json").read_text("utf-8"))
ALERTS = yaml.safe_load((ROOT / "deploy" / "prometheus-alerts.yml").read_text("utf-8"))
PAGE = (ROOT / "docs" / "how-to" / "operation" / "monitor.md").read_text("utf-8")
ON_SERVERS = {"waterclock_database_oldest_transaction_seconds": set[str]()}
ADDED = {"instance", "le", "job"}
"""Labels that Prometheus adds, or that histograms have."""


@pytest.fixture
def exported(connect: Callable[..., wc.Database]) -> dict[str, set[str]]:
    """The labels of each sample that some process exports."""
    database = connect()
    database.create_table("orders", dead_letter="dead").put(b"")
    topic = database.create_topic("telemetry")
    topic.append([wc.Message("a", "b", 0)])
    topic.subscribe("s").close()
    list(Upkeep(database).run())
    [delivery] = database.table("orders").receive()
    found: dict[str, set[str]] = dict(ON_SERVERS)
    for family in every_family(database, delivery):
        for sample in family.samples:
            found[sample.name] = set(sample.labels)
    return found


def every_family(database: wc.Database, delivery: Delivery) -> Iterator[Metric]:
    worker = WorkerMetrics(Counts, lambda: dict.fromkeys(("slots", "running", "waiting"), 0), lambda: 0)
    worker.note_outcome(delivery, "done")
    worker.note_handled(delivery, 1)
    worker.note_claim("orders", 1, 1)
    upkeep = UpkeepMetrics()
    upkeep.note(Task("topic", "telemetry", "seal"))
    pipeline = Progress("press", 1, 1, lag=1, phases={"all": 1}, open_batches=1, state_rows=1, state_bytes=1)
    lags = StreamLags()
    lags.note({("press", "load"): LagRange(1, 1)})
    lags.look()
    for collector in (DatabaseMetrics(lambda: database), worker, upkeep, IngestMetrics(IngestProgress(), lags)):
        yield from collector.collect()
    yield from families([pipeline], {"press": 1.0})


def expressions() -> dict[str, str]:
    alerts = {rule["alert"]: rule["expr"] for group in ALERTS["groups"] for rule in group["rules"]}
    panels = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in DASHBOARD["panels"]
        for target in panel.get("targets", ())
    }
    return alerts | panels


@pytest.mark.one_database
def test_alerts_and_panels_ask_for_metrics_and_labels_that_exist(exported: dict[str, set[str]]) -> None:
    wrong: dict[str, Any] = {}
    for name, expression in expressions().items():
        used = set(re.findall(r"waterclock_\w+", expression))
        assert used, name
        labels = {each for found in re.findall(r"(?:by|on) \(([^)]*)\)", expression) for each in found.split(", ")}
        labels |= set(re.findall(r"(\w+)(?:=~|=)\"", expression))
        known = set.union(*(exported.get(each, set()) for each in used)) | ADDED
        if unknown := (used - set(exported)) | (labels - known):
            wrong[name] = unknown
    assert not wrong


@pytest.mark.one_database
def test_the_page_lists_every_metric_of_a_database_and_of_workers_and_no_other(exported: dict[str, set[str]]) -> None:
    listed = {one for one in re.findall(r"`(waterclock_\w+)`", PAGE.partition("## Logs")[0]) if not one.endswith("_")}
    names = {re.sub(r"_(bucket|count|sum|created)$", "", name) for name in exported}
    assert listed <= names
    of_page = {
        name
        for name in names
        if name.startswith(("waterclock_table", "waterclock_topic", "waterclock_subscription", "waterclock_database"))
    }
    assert of_page <= listed


def test_panels_have_places_of_their_own() -> None:
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(places)
