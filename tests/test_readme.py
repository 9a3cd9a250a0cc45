"""The README's Python runs, as it stands, and says what it says it does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
BLOCKS = re.compile(r"```python\n(.*?)```", re.DOTALL)


def test_every_python_block_of_the_readme_runs_and_runs_again_in_the_same_folder(tmp_path: Path) -> None:
    blocks = BLOCKS.findall((ROOT / "README.md").read_text())
    assert blocks
    for again in (False, True):
        for block in blocks:
            command = [sys.executable, "-c", block]
            ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
            assert ran.returncode == 0, ran.stderr
            assert again or "press-01@" in ran.stdout
            assert again or "['load', 'heat']" in ran.stdout


def test_every_file_that_the_readme_links_to_exists() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / target).exists(), target
