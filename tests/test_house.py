"""How the files of the project stand to each other, as far as no contract of import-linter says it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import waterclock

PACKAGE = Path(waterclock.__file__).parent
TESTS = Path(__file__).parent
FACES = {"waterclock", "waterclock.spark", "waterclock.cli"}
"""The packages whose names are public, and come from files inside."""


@cache
def modules() -> dict[str, ast.Module]:
    """Parse every file of the package, by the name under which it is imported."""
    parsed: dict[str, ast.Module] = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        parsed[".".join(parts).removesuffix(".__init__")] = ast.parse(path.read_text())
    return parsed


def imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Give the file and the name of each import of a name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.module, name.name) for name in node.names)


def test_a_name_is_imported_from_the_file_that_makes_it() -> None:
    passed_on = {module: {name for _, name in imports(tree)} for module, tree in modules().items()}
    importers = modules() | {str(path): ast.parse(path.read_text()) for path in TESTS.rglob("*.py")}
    found = [
        f"{importer}: {name} from {module}"
        for importer, tree in importers.items()
        for module, name in imports(tree)
        if module not in FACES and name in passed_on.get(module, ()) and f"{module}.{name}" not in modules()
    ]
    assert not found
