"""The README's Python runs, as it stands, and says what it says it does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCKS = re.compile(r"```python\n(.*?)```", re.DOTALL)


def test_the_readmes_python_prints_the_same_on_a_second_run(tmp_path: Path) -> None:
    blocks = BLOCKS.findall((ROOT / "README.md").read_text())
    assert blocks
    first, second = ([_run(block, tmp_path) for block in blocks] for _ in range(2))
    assert first == second
    assert first[0].startswith("press-01@")
    assert first[0].endswith("['load', 'heat'] acked\n")


def _run(block: str, folder: Path) -> str:
    ran = subprocess.run([sys.executable, "-c", block], cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_every_file_that_the_readme_links_to_exists() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / target).exists(), target
