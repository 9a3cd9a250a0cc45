"""Puts a message each night at three in Berlin, also when the clocks change."""

import tempfile
from pathlib import Path

import waterclock as wc
from waterclock.testing import Clock, drain

clock = Clock("2026-10-24T12:00:00Z")  # the day before the clocks go back

with tempfile.TemporaryDirectory() as folder, wc.connect(f"sqlite:///{Path(folder) / 'shop.db'}", clock=clock) as db:
    reports = db.create_table("reports", payload="json")
    reports.schedule("nightly", cron="0 3 * * *", payload={"kind": "totals"}, timezone="Europe/Berlin", catch_up="all")

    for _ in range(3):
        clock.move("24h")
        reports.tick()  # every worker does this once a second
        drain(reports, lambda delivery: print(delivery.headers["waterclock.tick"], delivery.payload))
