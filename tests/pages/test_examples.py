"""Every example runs as it stands and prints what its reader expects."""

from __future__ import annotations

import runpy
import warnings
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PRINTS = {
    "batch_an_arrow_table.py": ["load 17 batch of 100 ms", "heat 65 batch of None ms late"],
    "batch_by_rate.py": ["closed by timeout", "second 2, closed by slots: {'detector': 14, 'monitor': 5}"],
    "batch_live.py": [
        "press-01@1782907200100000000 timeout   load heat",
        "oven-03@1782907200110000000 timeout   heat",
        "press-01 heat is late",
    ],
    "batches_as_work.py": ["2 messages, 15.0 on average", "handled: 3\nhandled: 0\n"],
    "find_a_moment.py": ["sealed 1 ledger", "08:39 begins at 0:", "b'1795250340."],
    "order_per_customer.py": ["bob: cancel", "ada waits with ['pay', 'ship']", "ada: ship"],
    "plain_sql.py": ["received: press 17 plates", "[(1, 'press 17 plates', 1), (2, 'press 3 plates', 0)]"],
    "queue_in_asyncio.py": ["put 2", "press-03 1782907200000000000", "acked 2 until 0:2:0"],
    "queue_in_your_transaction.py": ["rolled back", "invoice for ada: {'order': 1}"],
    "read_and_seek.py": ["read [b'0', b'1', b'2'] remaining 2", "[b'1', b'2', b'3', b'4']"],
    "retry_and_dead_letter.py": ["printed label 2 at attempt 3", "because label 3 has no address", "redriven: 1"],
    "typed_payloads.py": ["refund 2.50 for order 1", "cancel order 2", "handled: 2"],
    "work_on_a_schedule.py": ["2026-10-25T02:00:00Z {'kind': 'totals'}", "2026-10-27T02:00:00Z"],
}


def test_every_example_has_its_expected_output() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(PRINTS)


@pytest.mark.parametrize("name", PRINTS)
def test_the_list_of_examples_describes_each_by_its_first_line(name: str) -> None:
    first_line = (EXAMPLES / name).read_text().splitlines()[0].strip('"').rstrip(".")
    assert f"| [{name}]({name}) | {first_line} |" in (EXAMPLES / "README.md").read_text()


@pytest.mark.parametrize("name", PRINTS)
def test_an_example_prints_what_it_promises_without_a_warning(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    printed = capsys.readouterr().out
    for text in PRINTS[name]:
        assert text in printed
