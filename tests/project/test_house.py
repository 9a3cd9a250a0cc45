"""How the files of the project stand to each other, as far as no contract of import-linter says it."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import waterclock

PACKAGE = Path(waterclock.__file__).parent
TESTS = Path(__file__).parents[1]
BENCHMARKS = TESTS.parent / "benchmarks"
MOST_FILES = 14
FACES = {"waterclock", "waterclock.aio", "waterclock.spark", "waterclock.cli", "waterclock.testing"}
"""The packages whose names are public, and come from files inside."""

WAITED_FOR = {"self._changed", "self._event", "self._has_it", "self._stopped", "changed"}
"""Events and conditions of ours; what else has a method of this name waits through them, or is a process."""


def parse(path: Path) -> ast.Module:
    gc.freeze()  # otherwise collections look through all trees of before again, which took two thirds of the time
    return ast.parse(path.read_text())


@cache
def modules() -> dict[str, ast.Module]:
    """Parse every file of the package, by the name under which it is imported."""
    parsed: dict[str, ast.Module] = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        parsed[".".join(parts).removesuffix(".__init__")] = parse(path)
    return parsed


@cache
def of_tests() -> dict[str, ast.Module]:
    """Parse every file of the tests, by its path in their folder."""
    return {str(path.relative_to(TESTS)): parse(path) for path in TESTS.rglob("*.py")}


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """Walk the statements under a node; without the expressions, that takes a fifth of the time."""
    found: list[ast.AST] = [tree]
    while found:
        node = found.pop()
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            found += getattr(node, part, [])
        if isinstance(node, ast.stmt) and node is not tree:
            yield node


def imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Give the file and the name of each import of a name."""
    for node in statements(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.module, name.name) for name in node.names)


def made_in(tree: ast.Module) -> set[str]:
    """Name the classes and functions of a module: it may import one of the same name under another."""
    return {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)}


def test_a_name_is_imported_from_the_file_that_makes_it() -> None:
    passed_on = {module: {name for _, name in imports(tree)} - made_in(tree) for module, tree in modules().items()}
    importers = modules() | of_tests()
    found = [
        f"{importer}: {name} from {module}"
        for importer, tree in importers.items()
        for module, name in imports(tree)
        if module not in FACES and name in passed_on.get(module, ()) and f"{module}.{name}" not in modules()
    ]
    assert not found


def test_no_test_module_imports_from_another() -> None:
    found = [
        f"{path}: {node.module}"
        for path, tree in of_tests().items()
        for node in statements(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").rpartition(".")[2].startswith("test_")
    ]
    assert not found, "what two of them need is in a module of its own"


def test_only_moments_read_how_much_time_passes_and_wait() -> None:
    clocks = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep"}
    found = [
        f"{module}:{node.lineno}: {ast.unparse(node)}"
        for module, tree in modules().items()
        if module != "waterclock._support.moments"
        for node in ast.walk(tree)
        if _reads_a_clock(node, clocks) or _waits(node)
    ]
    assert not found


def _reads_a_clock(node: ast.AST, clocks: set[str]) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module in ("time", "select")
    if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
        return False
    return (node.value.id == "time" and node.attr in clocks) or (node.value.id, node.attr) == ("select", "poll")


def _waits(node: ast.AST) -> bool:
    """Whether it waits for another thread by itself: an event or a condition, or a lock for some time."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    own = ast.unparse(node.func.value)
    if node.func.attr in ("wait", "wait_for"):
        return own in WAITED_FOR
    return node.func.attr == "acquire" and own != "moments" and any(word.arg == "timeout" for word in node.keywords)


def test_no_two_classes_share_a_name() -> None:
    found: dict[str, list[str]] = {}
    for module, tree in modules().items():
        if module.startswith("waterclock.aio"):  # has the same names, awaited
            continue
        for node in statements(tree):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name.lstrip("_"), []).append(module)
    assert not {name: homes for name, homes in found.items() if len(homes) > 1}


def test_nested_functions_say_what_they_do() -> None:
    found = [
        f"{module}:{inner.lineno}: {inner.name}"
        for module, tree in modules().items()
        for outer in statements(tree)
        if isinstance(outer, ast.FunctionDef)
        for inner in statements(outer)
        if isinstance(inner, ast.FunctionDef) and inner.name in {"work", "do", "inner"}
    ]
    assert not found


def test_a_folder_has_at_most_fourteen_files() -> None:
    folders = {path.parent for root in (PACKAGE, TESTS, BENCHMARKS) for path in root.rglob("*.py")}
    found = {str(folder): count for folder in sorted(folders) if (count := _python_files(folder)) > MOST_FILES}
    assert not found, "sort the files of each into folders that say which part of the job they do"


def _python_files(folder: Path) -> int:
    return sum(path.name not in ("__init__.py", "__main__.py") for path in folder.glob("*.py"))
