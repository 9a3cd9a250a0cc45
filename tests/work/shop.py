"""Handlers as a user writes them, for workers that run as processes."""

from __future__ import annotations

import sys
import threading

from waterclock.cli.app import run
from waterclock.tables.consumers.delivery import Delivery


def handle(delivery: Delivery) -> None:
    print("handled", delivery.payload, flush=True)


def hold(delivery: Delivery) -> None:
    """Say that it began, and ignore all that it is asked."""
    print("began", delivery.payload, flush=True)
    threading.Event().wait()


def main(*words: str) -> None:
    """Run a command in a process of its own."""
    if code := run([*words]):
        sys.exit(code)
