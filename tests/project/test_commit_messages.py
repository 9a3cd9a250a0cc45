"""The commit hook takes messages of the house's form, and says what is wrong with others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "check-commit-message"
GOOD = "Fix lost ack when a pooled connection is reset\n\nThe ack was sent on the old one.\n"


def check(message: str, folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "message"
    file.write_text(message, "utf-8")
    return subprocess.run([sys.executable, str(SCRIPT), str(file)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "message", [GOOD, GOOD + "# a comment of git's\n", "Seal ledgers on Spark\n\nWhy.\n", "Embed it\n\nWhy.\n"]
)
def test_a_message_of_the_form_is_taken(message: str, tmp_path: Path) -> None:
    assert check(message, tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("Fix it\n", "must have a body"),
        ("Fix it\n\n# nothing but a comment\n", "must have a body"),
        (f"Fix {'x' * 80}\n\nWhy.\n", "at most 72 characters, got 84"),
        ("Fixed it\n\nWhy.\n", "imperative"),
        ("Adds it\n\nWhy.\n", "imperative"),
        ("fix it\n\nWhy.\n", "imperative"),
        ("Fix it.\n\nWhy.\n", "full stop"),
        ("Fix it\nWhy.\n", "must be empty"),
        ("", "imperative"),
    ],
)
def test_an_invalid_message_is_refused_with_the_reason(message: str, says: str, tmp_path: Path) -> None:
    ran = check(message, tmp_path)
    assert ran.returncode == 1
    assert says in ran.stderr
