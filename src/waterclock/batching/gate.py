"""Which streams may gate, as the user chose. A function is asked before anything changes, since it may raise."""

from __future__ import annotations

from collections.abc import Iterable

from waterclock.batching.rate_rule import Gated, gate_chooser

_MOST_ANSWERS = 4096


class Gate:
    """Tells whether a stream may gate.

    Attributes
    ----------
    gated
        What the user chose: a bool, a frozen set of names, or a function.
    """

    __slots__ = ("_answers", "_choose", "gated")

    def __init__(self, gated: Gated) -> None:
        self._choose = gate_chooser(gated)
        self.gated = gated if isinstance(gated, bool) or callable(gated) else frozenset(gated)
        self._answers: dict[str, bool] | None = {} if callable(self.gated) else None

    def ask(self, streams: Iterable[str]) -> None:
        """Ask a function about the streams that it was not asked about lately. What it raises changes nothing."""
        if self._answers is None:
            return
        if len(self._answers) > _MOST_ANSWERS:
            self._answers = {}
        self._answers |= {stream: bool(self._choose(stream)) for stream in {*streams} - self._answers.keys()}

    def __call__(self, stream: str) -> bool:
        """Answer; where a function chose, as it did when it was asked."""
        return self._choose(stream) if self._answers is None else self._answers[stream]
