"""Source and documentation are written in plain English: each construction to avoid, with its replacement."""

from __future__ import annotations

import ast
import re
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
LONGEST_SENTENCE = 30
"""Words. Longer sentences had to be read twice by readers who were new to the project."""


class Rule(NamedTuple):
    """A pattern to avoid, and its replacement."""

    pattern: str
    instead: str


FIRST_VERBS = {
    "Give": Rule(r"Gives?\b", "Return, Yield, Set"),
    "Say": Rule(r"Says?\b", "Return whether, Log, Print"),
    "Let": Rule(r"Lets?\b", "the verb itself: Allow, Wait, Release"),
    "Insist": Rule(r"Insists?\b", "Check, Raise"),
    "Make": Rule(r"Makes?\b", "Create, Build, Return"),
    "Have": Rule(r"Ha(?:ve|s)\b", "the verb itself: Start, Run"),
    "Tell": Rule(r"Tells?\b", "Return, Notify, Report"),
}
"""First words of the docstrings of functions."""

CONSTRUCTIONS = {
    "is no": Rule(
        r"(?<![Tt]here )\b(?:is|are|was|were) no (?!longer|more than|less)\w+",
        "is not a …, must be …, there are no …",
    ),
    "is none": Rule(r"\b(?:is|are) none\b", "missing, must be one of …, no … found"),
    "Where": Rule(r"(?:^ *|[.!?] |[\"#] *)Where\b(?! to\b)", "If, When"),
    "where there is": Rule(r"\bwhere (?:there|it|they|none|the|no|one|nothing|messages|some)\b", "if, when"),
    "headless what": Rule(
        r"\b[Ww]hat (?:is|are|was|were|has|have|had|it|they|another|became|comes|follows|waits|users?)\b",
        "a noun: the rows that …, the outcome",
    ),
    "gives": Rule(r"\b(?:gives|is given)\b", "returns, takes"),
    "is to be": Rule(r"\b(?:is|are) to be\b", "must be, will be"),
    "so that it is": Rule(r"\bso that (?:it|they|none|nothing) (?:is|are)\b", "to …"),
    "beside": Rule(r"\bbeside\b", "next to, in addition to"),
    "anew": Rule(r"\banew\b", "again"),
    "at the most": Rule(r"\bat the (?:most|least)\b", "at most, at least"),
    "for ever": Rule(r"\bfor ever\b", "forever"),
    "belong into": Rule(r"\bbelongs? into\b", "belong in"),
    "has it that": Rule(r"\bhas it that\b", "the statement itself"),
    "cannot be meant": Rule(r"\bcannot be meant\b", "is invalid"),
    "nobody": Rule(r"\b(?:no|some|any|every)body\b", "the actor: no consumer, another consumer, every process"),
    "whoever": Rule(r"\bwhoever\b", "the actor: a consumer that …"),
}
"""Anywhere in the source, in names too."""

ERRORS = {
    "give one of": Rule(r"\bgive (?:one of|a|an)\b", "{name} must be one of …, got {value}"),
    "is no": Rule(r"\bis no(?:ne)?\b", "{name} must be {what}, got {value}"),
    "final full stop": Rule(r"(?<![.…])\.$", "no full stop at the end"),
    "capital": Rule(
        r"^(?:The|A|An|This|No|Cannot|It|Use|Pass)\b", "start in lower case, as the text stands behind a name"
    ),
}
"""In the texts of errors that are raised."""

SOURCES = sorted((ROOT / "src").rglob("*.py"))
GENERATED = ROOT / "docs" / "sql.md"
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page != GENERATED)]


@cache
def _found() -> list[tuple[Path, list[tuple[int, str]], list[tuple[int, str]]]]:
    trees = ((path, ast.parse(text)) for path, text in _texts())  # one after another: collections look through them
    return [(path, list(first_words(tree)), list(error_texts(tree))) for path, tree in trees]


def first_words(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the docstrings of functions with their lines; those of properties name what they return."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _is_property(node):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, text


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("property" in ast.unparse(one) for one in node.decorator_list)


def error_texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the first text of each error that is raised; each value in it is ``{}``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            text = node.exc.args[0]
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield text.lineno, text.value
            elif isinstance(text, ast.JoinedStr):
                yield (
                    text.lineno,
                    "".join(str(one.value) if isinstance(one, ast.Constant) else "{}" for one in text.values),
                )


def sentences(page: str) -> Generator[tuple[int, str]]:
    """Yield the sentences of a page's paragraphs and lists, without code, tables and links' addresses."""
    page = re.sub(r"^(```|~~~).*?^\1", lambda code: "\n" * code[0].count("\n"), page, flags=re.DOTALL | re.MULTILINE)
    page = re.sub(r"<!--.*?-->", lambda hidden: "\n" * hidden[0].count("\n"), page, flags=re.DOTALL)
    line = 1
    for block in re.split(r"(\n\s*\n|\n(?=\s*(?:[-*]|\d+\.|\||#)\s?))", page):
        if not block.lstrip().startswith(("|", "#", "!", "    ")):
            text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "code", block))
            yield from ((line, one) for one in re.split(r"(?<=[.!?:;])\s+", text.strip()) if one)
        line += block.count("\n")


def length(sentence: str) -> int:
    """Count the words of a sentence."""
    return len(re.findall(r"[A-Za-z0-9][\w'-]*", sentence))


def _check(rule: Rule, found: list[str]) -> None:
    assert not found, f"write {rule.instead}:\n" + "\n".join(found)


@pytest.mark.parametrize("word", FIRST_VERBS)
def test_docstrings_start_with_a_verb_that_says_what_is_done(word: str) -> None:
    rule = FIRST_VERBS[word]
    _check(
        rule,
        [
            f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
            for path, docstrings, _ in _found()
            for line, text in docstrings
            if re.match(rule.pattern, text)
        ],
    )


@pytest.mark.parametrize("name", CONSTRUCTIONS)
def test_source_avoids_constructions_that_have_to_be_read_twice(name: str) -> None:
    rule = CONSTRUCTIONS[name]
    pattern = re.compile(rule.pattern, re.MULTILINE)
    _check(
        rule,
        [
            f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[line - 1].strip()}"
            for path, text in _texts()
            for line in sorted({text.count("\n", 0, hit.end()) + 1 for hit in pattern.finditer(text)})
        ],
    )


@cache
def _texts() -> list[tuple[Path, str]]:
    return [(path, path.read_text("utf-8")) for path in SOURCES]


@pytest.mark.parametrize("name", ERRORS)
def test_errors_have_the_usual_forms(name: str) -> None:
    rule = ERRORS[name]
    pattern = re.compile(rule.pattern)
    _check(
        rule,
        [
            f"{path.relative_to(ROOT)}:{line}: {text}"
            for path, _, texts in _found()
            for line, text in texts
            if pattern.search(text)
        ],
    )


def test_sentences_of_pages_are_short() -> None:
    rule = Rule("", f"two sentences, each of at most {LONGEST_SENTENCE} words")
    _check(
        rule,
        [
            f"{path.relative_to(ROOT)}:{line}: {text}"
            for path in PAGES
            for line, text in sentences(path.read_text("utf-8"))
            if length(text) > LONGEST_SENTENCE
        ],
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("is no", "'x' is no count"),
        ("Where", "Where the file is gone, it stops."),
        ("anew", "It is read anew."),
        ("nobody", "Nobody reads it.".lower()),
        ("headless what", "what is there already"),
    ],
)
def test_constructions_are_found(name: str, text: str) -> None:
    assert re.search(CONSTRUCTIONS[name].pattern, text)


def test_texts_are_taken_from_source_and_pages() -> None:
    tree = ast.parse('def f():\n    """Give it."""\n    raise ValueError(f"{x} is no count")\n')
    assert list(first_words(tree)) == [(2, "Give it.")]
    assert list(error_texts(tree)) == [(3, "{} is no count")]
    assert [text for _, text in sentences("# Title\n\nOne. Two\nmore.\n\n```sh\nrun it.\n```\n- Three.\n")] == [
        "One.",
        "Two\nmore.",
        "- Three.",
    ]
