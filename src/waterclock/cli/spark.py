"""``waterclock spark``: what makes Spark start sooner on this machine."""

from __future__ import annotations

from cyclopts import App

app = App(name="spark")
