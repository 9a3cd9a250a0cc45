"""Reads which packages each extra of Waterclock installs, from Waterclock's own metadata."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, requires


def install_command(extra: str | None = None) -> str:
    """Return the pip command that installs the packages of `extra`, or those that Waterclock always needs.

    It names the packages themselves, so it also works if pip finds no package index with Waterclock in it.
    """
    try:
        requirements = requires("waterclock") or []
    except PackageNotFoundError:  # imported from sources without an installation
        return "pip install ." if extra is None else f"pip install '.[{extra}]'"
    packages: list[str] = []
    for requirement in requirements:
        package, _, marker = requirement.partition(";")
        if ("extra ==" not in marker) if extra is None else (extra in _quoted_words(marker)):
            packages.append(f"'{package.strip()}'")
    return " ".join(["pip install", *packages])


def _quoted_words(marker: str) -> list[str]:
    return marker.replace('"', "'").split("'")[1::2]
