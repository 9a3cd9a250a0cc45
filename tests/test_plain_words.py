"""Code and pages name who acts, in the words of today: what a reader has to puzzle out stays out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

INSTEAD = {
    "nobody": "name the actor: no consumer, no writer, no reader",
    "somebody": "name the actor: another consumer, a writer, a caller",
    "anybody": "name the actor: any consumer",
    "everybody": "name the actors: all consumers, every process",
    "whoever": "name the actor: a consumer that …, a process that …",
    "undertaker": "say what it does: it redrives, buries, moves dead letters",
    "in a hand": "claimed, leased",
    "what is left": "what remains, the rest",
    "found by time": "say that it can be searched by time",
}
"""Each word that is refused, and what to write."""

NAMES = {
    "told_at": "a column of the former waterclock_attendance, which migrations name",
}
"""Names that hold such a word, and why they stay."""

EXCEPT = {
    "CHANGELOG.md": "says how things were called when they changed",
    "tests/test_plain_words.py": "lists the words",
    "scripts/testservers/servers.py": "names Unix's account `nobody`",
}
"""Files that hold such a word for a reason."""

FILES = sorted(
    str(path.relative_to(ROOT))
    for pattern in (
        "src/**/*.py",
        "tests/**/*.py",
        "benchmarks/**/*.py",
        "examples/**/*.py",
        "scripts/**/*.py",
        "docs/**/*.md",
        "*.md",
        "Makefile",
        "scripts/services",
        "scripts/setup",
        "scripts/make-recording",
    )
    for path in ROOT.glob(pattern)
    if str(path.relative_to(ROOT)) not in EXCEPT
)


def _pattern(word: str) -> re.Pattern[str]:
    # Words may be in a name, between underscores; a phrase may go on in the next line of a comment.
    between = r"(?:\s|#)+".join(map(re.escape, word.split()))
    return re.compile(rf"(?<![A-Za-z]){between}(?![A-Za-z])", re.IGNORECASE)


PATTERNS = {word: _pattern(word) for word in INSTEAD}
_NAME = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in NAMES))


def refused(text: str) -> list[tuple[int, str]]:
    """Find refused words in a text: the number of the line, and the word."""
    text = _NAME.sub(lambda name: "_" * len(name[0]), text)
    hits = ((hit.start(), word) for word, pattern in PATTERNS.items() for hit in pattern.finditer(text))
    return [(text.count("\n", 0, at) + 1, word) for at, word in sorted(hits)]


def test_code_and_pages_are_written_in_plain_words() -> None:
    assert len(FILES) > 600
    found = [
        f"{name}:{line}: {word!r}; write instead: {INSTEAD[word]}"
        for name in FILES
        for line, word in refused((ROOT / name).read_text("utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Nobody has it.", ["nobody"]),
        ("the one in\n    # hand", ["in hand"]),
        ("_is_told = True", ["told"]),
        ("def seek(self, offset, whence): ...", []),
        ("the documentation, in handy form, by the lessee, in gravel", []),
    ],
)
def test_words_are_found_in_names_and_across_lines(text: str, words: list[str]) -> None:
    assert [word for _, word in refused(text)] == words
