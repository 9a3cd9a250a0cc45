"""Looks up the roles of streams, which the user chose with the option ``gated``.

If ``gated`` is a function, it is called before anything changes, since it may raise an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from waterclock.batching.rate.rule import Gated, role_chooser

_MOST_ANSWERS = 4096


class Gate:
    """Decides the role of a stream."""

    __slots__ = ("_answers", "_choose", "asks", "boundaries", "gated")

    def __init__(self, gated: Gated, boundaries: Collection[str] = ()) -> None:
        self._choose = role_chooser(gated, boundaries)
        self.boundaries = frozenset(boundaries)  # the streams whose messages cut windows
        # The user's choice: a bool, a frozen set of names, or a function.
        self.gated = gated if isinstance(gated, bool) or callable(gated) else frozenset(gated)
        self.asks = callable(self.gated)  # whether it is a function
        self._answers: dict[str, int] = {}

    def ask(self, streams: Iterable[str]) -> None:
        """Call the function for streams without a recent answer. If it raises, nothing changes."""
        if len(self._answers) > _MOST_ANSWERS:
            self._answers = {}
        for stream in dict.fromkeys(streams):
            if stream not in self._answers:
                self._answers[stream] = self._choose(stream)

    def __call__(self, stream: str) -> int:
        """Return the role; a function must have been called before."""
        return self._answers[stream] if self.asks else self._choose(stream)
