"""Every example runs as it stands and prints what its reader is meant to see."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
PRINTS = {
    "batch_live.py": ["press-01@100000000", "timeout   load heat", "oven-03@110000000", "press-01 heat is late"],
    "queue_in_your_transaction.py": ["rolled back", "invoice for ada: {'order': 1}"],
    "find_a_moment.py": ["sealed 1 ledger", "08:39 begins at 0:", "b'1795250340."],
}


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_an_example_runs_and_prints_what_it_promises(name: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    for text in PRINTS[name]:
        assert text in ran.stdout
