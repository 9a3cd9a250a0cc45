"""A plugin of pytest: collecting then imports the files of tests, and makes no tests of what is in them."""

from __future__ import annotations


def pytest_pycollect_makeitem() -> list[object]:
    return []
