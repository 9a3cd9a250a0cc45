"""The Python of every page runs, block after block, as a reader would type it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.forked import Forked

import waterclock as wc

DOCS = Path(__file__).parents[2] / "docs"
BLOCKS = re.compile(r"```python\n(?!# \S+\.py\n)(.*?)```", re.DOTALL)  # not the files of a project: test_frameworks.py
PAGES = [
    # Spark's has three streams and takes a minute.
    pytest.param(name, marks=[pytest.mark.slow] if "spark" in name else [])
    for name in sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if BLOCKS.search(page.read_text()))
]

# A subscription waits for more for ever; here it ends when there is no more.
ENDING = """
from waterclock.tables.consumers import subscription
subscription.pause = lambda entry, changes, stop, *_: (stop.set() or 0, True)
"""


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs(page: str, tmp_path: Path) -> None:
    with wc.connect(f"sqlite:///{tmp_path}/factory.db") as database:
        topic = database.create_topic("telemetry")
        times = [f"2026-07-01T12:00:0{second}Z" for second in range(9)]
        # On Spark's pages they are in time for their batches.
        received = times if "spark" in page else [None] * 9
        pairs = zip(times, received, strict=True)
        topic.append([wc.Message("press-01", "load", at, b"17", receive_time=then) for at, then in pairs])
        if "spark" in page:
            database.create_topic("rejected")
            database.create_topic("copy")
            database.create_table("batches", id_type="text")
            database.create_table("orders", payload="json").put({"press": 17})
    script = "\n".join([ENDING, *BLOCKS.findall((DOCS / page).read_text())])
    if "spark" in page:  # whose Java ends with a Python that ends by itself, which a fork does not
        done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return
    file, errors = tmp_path / "page.py", tmp_path / "stderr"
    file.write_text(script, "utf-8")
    with Forked("tests.pages.page", tmp_path, file, errors) as ran:
        ran.stdout.read()
    assert ran.returncode == 0, errors.read_text("utf-8")


def test_the_views_of_files_hold_each_message_once_after_compactions_and_truncations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with wc.connect("sqlite:///factory.db") as database:
        topic = database.create_topic("telemetry")
        for number in range(4):
            topic.append([wc.Message("press-01", "load", "2026-07-01T12:00:00Z", b"17")] * (number + 1))
            topic.roll()
        topic.seal()
        topic.compact()
        topic.truncate(wc.Position(1, 0, 0))
        topic.append([wc.Message("press-01", "load", "2026-07-01T12:00:00Z", b"17")])
    page: dict[str, Any] = {}
    exec("\n".join(BLOCKS.findall((DOCS / "how-to" / "topics" / "query-with-duckdb.md").read_text())), page)  # noqa: S102
    ledgers = [(1, 2), (2, 3), (3, 4), (None, 1)]  # the files of ledgers that were not compacted have no such column
    counted = page["duckdb"].sql("SELECT ledger, count(*) FROM telemetry GROUP BY ledger ORDER BY ledger")
    assert counted.fetchall() == ledgers
    assert page["sealed"].group_by("ledger").len().collect().sort("ledger", nulls_last=True).rows() == ledgers
    page["db"].close()


def test_every_page_is_in_the_navigation_and_every_guide_is_named_on_the_first_page() -> None:
    navigation = (DOCS.parent / "mkdocs.yml").read_text()
    first = (DOCS / "index.md").read_text()
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert {page for page in pages if not re.search(rf"[-:] {re.escape(page)}\n", navigation)} == set()
    guides = {page for page in pages if page.startswith(("how-to/", "concepts/"))}
    assert {page for page in guides if f"({page})" not in first} == set()


def test_a_decision_has_the_number_and_the_title_that_the_list_gives_it() -> None:
    decisions = sorted((DOCS / "adr").glob("0*.md"))
    titles = [page.read_text().partition("\n")[0] for page in decisions]
    listed = re.findall(r"^\| \[(\d{4})\]\((.*?)\) \| (.*) \|$", (DOCS / "adr" / "README.md").read_text(), re.MULTILINE)
    assert [f"# {int(number)}. {title}" for number, _, title in listed] == titles
    assert [name for _, name, _ in listed] == [page.name for page in decisions]
