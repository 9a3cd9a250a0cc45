"""Topics, tables, batches and pictures show themselves in a notebook, with everything from outside escaped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import waterclock as wc

HOSTILE = "<script>alert(1)</script>"

CELLS = [
    f"""
import waterclock as wc
db = wc.connect("sqlite:///factory.db")
topic = db.create_topic("telemetry")
topic.append([wc.Message({HOSTILE!r}, {HOSTILE!r} + str(n), n, b"<b>secret</b>", receive_time=n) for n in range(12)])
topic
""",
    'db.create_table("orders", payload="text").put("secret"); db.table("orders")',
    """
batcher = wc.EventTimeBatcher(window="1s", max_delay="1s")
batches = [batch for message in topic.read() for batch in batcher.add(message)] + batcher.flush()
batches[0]
""",
    "wc.timeline(batches)",
]


def test_a_notebook_shows_the_value_of_each_cells_last_line(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown: list[dict[str, Any]] = [cell.outputs[-1]["data"] for cell in notebook.cells]
    topic, table, batch = (data["text/html"] for data in shown[:3])
    assert "<strong>Topic telemetry</strong>" in topic
    assert "<td style='text-align:left'>12</td>" in topic
    assert "<strong>Message table orders</strong>" in table
    assert "… and 2 more" in batch
    for text in (topic, table, batch, shown[3]["image/svg+xml"]):
        assert "<script" not in text
        assert "secret" not in text
    assert "&lt;script&gt;" in batch
    assert shown[3]["image/svg+xml"].startswith("<svg")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_empty_topic_and_table_show_themselves(connect: Callable[..., wc.Database]) -> None:
    database = connect()
    assert "<strong>Topic t</strong>" in database.create_topic("t")._repr_html_()
    assert "<strong>Message table q</strong>" in database.create_table("q")._repr_html_()


def test_control_characters_are_shown_escaped_and_long_texts_are_cut() -> None:
    name = "\x1b]0;\0\u202e<img>" + "x" * 100_000
    batch = wc.Batch(name, 0, 1, 2, "timeout", (wc.Message(name, name, 0, b""),))
    shown = batch._repr_html_()
    assert shown.isprintable()
    assert "\\x1b]0;\\x00\\u202e&lt;img&gt;xxx" in shown
    assert len(shown) < 10_000
