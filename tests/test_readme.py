"""The README's Python runs, as it stands, and says what it says it does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
BLOCKS = re.compile(r"```python\n(.*?)```", re.DOTALL)


def test_every_python_block_of_the_readme_runs(tmp_path: Path) -> None:
    blocks = BLOCKS.findall((ROOT / "README.md").read_text())
    assert blocks
    for block in blocks:
        ran = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        assert "press-01@" in ran.stdout
        assert "['load', 'heat']" in ran.stdout


def test_the_readme_runs_a_second_time_in_the_same_folder(tmp_path: Path) -> None:
    test_every_python_block_of_the_readme_runs(tmp_path)
    (block,) = BLOCKS.findall((ROOT / "README.md").read_text())
    ran = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_every_file_that_the_readme_links_to_exists() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / target).exists(), target
