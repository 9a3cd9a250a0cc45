"""Pickling: a database, topic or table is pickled as what reopens it, and what lives in one process is refused."""

from __future__ import annotations

import warnings
from typing import NoReturn


def warn_of_secret(name: str, text: str, safe: str) -> None:
    """Warn if a pickle will hold a URL that has something secret in it; ``safe`` is the URL as it may be shown."""
    if text != safe:
        warnings.warn(
            f"the pickle of {name} contains the secrets of {safe}; keep it as safe as the password", stacklevel=3
        )


def refuse_pickling(one: object, remedy: str) -> NoReturn:
    """Refuse to pickle what holds leases, threads or connections.

    Raises
    ------
    TypeError
        As Python raises it for a lock; libraries that pickle know no other one.
    """
    raise TypeError(f"cannot pickle {type(one).__name__}: it belongs to the process that opened it. {remedy}")
