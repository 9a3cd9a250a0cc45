"""The user's choice of streams that may gate. A function is called before anything changes, since it may raise."""

from __future__ import annotations

from collections.abc import Iterable

from waterclock.batching.rate.rule import Gated, gate_chooser

_MOST_ANSWERS = 4096


class Gate:
    """Decides whether a stream may gate.

    Attributes
    ----------
    gated
        The user's choice: a bool, a frozen set of names, or a function.
    asks
        Whether it is a function.
    """

    __slots__ = ("_answers", "_choose", "asks", "gated")

    def __init__(self, gated: Gated) -> None:
        self._choose = gate_chooser(gated)
        self.gated = gated if isinstance(gated, bool) or callable(gated) else frozenset(gated)
        self.asks = callable(self.gated)
        self._answers: dict[str, bool] = {}

    def ask(self, streams: Iterable[str]) -> None:
        """Call the function for streams without a recent answer. If it raises, nothing changes."""
        if len(self._answers) > _MOST_ANSWERS:
            self._answers = {}
        for stream in dict.fromkeys(streams):
            if stream not in self._answers:
                self._answers[stream] = bool(self._choose(stream))

    def __call__(self, stream: str) -> bool:
        """Return the answer; a function must have been called before."""
        return self._answers[stream] if self.asks else self._choose(stream)
