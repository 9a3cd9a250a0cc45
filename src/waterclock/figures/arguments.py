"""Checks the arguments of pictures before anything is drawn."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from waterclock._support.quoting import quoted
from waterclock.batching.batch import Batch, Rejection
from waterclock.errors import InvalidArgumentError
from waterclock.figures.theme import REJECTED
from waterclock.time import to_time

if TYPE_CHECKING:
    from waterclock.time import Time

_NARROWEST = 400
"""Texts need this width, px."""

_WIDEST = 100_000
"""Wider than browsers and printers draw, px."""


def check_frame(width: int, title: str) -> None:
    """Refuse a picture too narrow for its texts, or a title that is not a string."""
    if not isinstance(cast("object", width), int) or not _NARROWEST <= width <= _WIDEST:
        raise InvalidArgumentError(f"width must be an integer from {_NARROWEST} to {_WIDEST} px, got {quoted(width)}")
    if not isinstance(cast("object", title), str):
        raise InvalidArgumentError(f"title must be a string, got {quoted(title)}")


def batch_list(batches: Iterable[Batch]) -> list[Batch]:
    items = _items("batches", batches, "waterclock.Batch objects")
    for item in items:
        if not isinstance(item, Batch):
            raise InvalidArgumentError(f"batches must hold waterclock.Batch objects, got {quoted(item)}")
    return items


def rejection_list(rejected: Iterable[Rejection]) -> list[Rejection]:
    """Return the rejections as a list; each has a reason with a mark."""
    items = _items("rejected", rejected, "waterclock.Rejection objects")
    for item in items:
        if not isinstance(item, Rejection):
            raise InvalidArgumentError(f"rejected must hold waterclock.Rejection objects, got {quoted(item)}")
        if item.reason not in REJECTED:
            raise InvalidArgumentError(
                f"reasons in rejected must be one of {', '.join(REJECTED)}, got {quoted(item.reason)}"
            )
    return items


def name_list(lanes: Iterable[str]) -> list[str]:
    """Return the names of sources as a list."""
    names = [] if isinstance(lanes, str) else _items("lanes", lanes, "names of sources")
    if isinstance(lanes, str) or not all(isinstance(name, str) for name in names):
        raise InvalidArgumentError(f"lanes must be a list of source names, got {quoted(lanes)}")
    return names


def note_list(notes: Iterable[tuple[Time, str]]) -> list[tuple[int, str]]:
    """Return the notes with their times in ns."""
    noted: list[tuple[int, str]] = []
    for note in _items("notes", notes, "pairs of a time and a text"):
        match note:
            case (time, str(text)):
                noted.append((to_time(time, "notes"), text))
            case _:
                raise InvalidArgumentError(f"notes must hold pairs of a time and a text, got {quoted(note)}")
    return noted


def _items(name: str, given: Iterable[Any], what: str) -> list[Any]:
    if not isinstance(cast("object", given), Iterable):
        raise InvalidArgumentError(f"{name} must be a list of {what}, got {quoted(given)}")
    return list(given)
