"""Checking the options of the format ``waterclock``, which are texts to Spark and case-blind."""

from __future__ import annotations

from collections.abc import Mapping

from waterclock.errors import InvalidArgumentError


def needed(options: Mapping[str, str], name: str) -> str:
    """Give an option that has to be there."""
    if name not in options:
        raise InvalidArgumentError(f'the option {name!r} is missing; add .option("{name}", …)')
    return options[name]


def refuse_unknown(options: Mapping[str, str], known: frozenset[str]) -> None:
    """Refuse options that nobody would read: a typing error must not change what is done."""
    for name in options:
        if name not in known:
            raise InvalidArgumentError(f"the option {name!r} is not known; there are {', '.join(sorted(known))}")
