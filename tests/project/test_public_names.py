"""The public names: all there for annotations, each imported when it is asked for."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from tests.support.imports import HEAVY, loaded_after

import waterclock as wc


@pytest.mark.parametrize("name", wc.__all__)
def test_a_public_name_is_there_and_listed(name: str) -> None:
    assert getattr(wc, name) is not None
    assert name in dir(wc)


def test_a_class_is_the_one_of_its_module() -> None:
    for name in wc.__all__:
        if isinstance(getattr(wc, name), type):
            assert getattr(wc, name).__name__ == name
            assert getattr(wc, name).__module__.startswith("waterclock.")


def test_names_that_annotations_need_are_public() -> None:
    assert {"Topic", "MessageTable", "Delivery", "Subscription", "RateAwareColumns"} <= set(wc.__all__)


def test_the_version_is_that_of_the_package() -> None:
    assert wc.__version__ == version("waterclock")


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        wc.nonsense  # noqa: B018


def test_importing_waterclock_imports_none_of_its_libraries() -> None:
    assert not HEAVY & loaded_after("import waterclock")


def test_a_message_table_is_worked_with_without_the_libraries_of_topics(sqlite_url: str) -> None:
    loaded = loaded_after(f"import waterclock; waterclock.connect({sqlite_url!r}).create_table('orders').put(b'17')")
    assert loaded & HEAVY == {"sqlalchemy"}


def test_type_checkers_find_the_types() -> None:
    assert (Path(wc.__file__).parent / "py.typed").exists()


REFERENCE = (Path(__file__).parents[2] / "docs" / "reference.md").read_text()


def shown_in(path: str) -> Iterator[tuple[str, Any]]:
    """Yield what the reference shows for a module or class: itself, and its public classes, functions and methods."""
    try:
        shown: Any = importlib.import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        shown = getattr(importlib.import_module(module), name)
    yield path, shown
    own = shown.__name__ if inspect.ismodule(shown) else shown.__module__
    for name, member in vars(shown).items():
        if not name.startswith("_") and getattr(member, "__module__", own) == own:
            if inspect.isclass(member):
                yield from shown_in(f"{path}.{name}")
            elif inspect.isfunction(member) or isinstance(member, property | classmethod | staticmethod):
                yield f"{path}.{name}", member


@pytest.mark.parametrize("path", re.findall(r"^::: (\S+)$", REFERENCE, re.MULTILINE))
def test_every_name_in_the_reference_has_a_docstring(path: str) -> None:
    assert [name for name, shown in shown_in(path) if not inspect.getdoc(shown)] == []
