"""Warns if ``exist_ok=True`` is used with options that differ from the existing topic's or table's."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping

from waterclock._support.quoting import quoted
from waterclock.time import format_duration


def warn_of_differences(
    what: str,  # the topic or table, for the text
    given: Mapping[str, object],
    existing: Mapping[str, object],
    defaults: Mapping[str, object],
    durations: Collection[str],  # which options are lengths of time, in ns
    *,
    stacklevel: int,  # how many calls up the user's line is, as for `warnings.warn` from the caller of this function
) -> None:
    """Warn if options of a call to ``create_topic`` or ``create_table`` differ from the existing ones.

    A warning and not an error: a program that creates its tables and topics at each start must not fail because an
    operator altered an option. An option with its default counts as not given.
    """

    def spelled(name: str, value: object) -> str:
        return repr(format_duration(value)) if name in durations and isinstance(value, int) else quoted(value)

    differences = [
        f"{name} is {spelled(name, existing[name])}, not {spelled(name, value)}"
        for name, value in given.items()
        if value != existing[name] and value != defaults[name]
    ]
    if differences:
        warnings.warn(
            f"{what} already exists and keeps its options: {'; '.join(differences)}. To change them, call alter()",
            stacklevel=stacklevel + 1,
        )
