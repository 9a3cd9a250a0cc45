"""The options of batching by rate on Spark."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from waterclock.batching.declared_streams import stream_names
from waterclock.batching.rate.by_message.aligned import Clocks, checked_clocks
from waterclock.batching.rate.by_message.silence import checked_silence
from waterclock.batching.rate.rule import Gated, RateRule, gate_chooser
from waterclock.time import Duration


class RateOptions(NamedTuple):
    """The checked options of batching by rate; as of `waterclock.RateAwareBatcher`."""

    batch_length: Duration
    timeout: Duration | float | None
    gated: Gated
    forget_after: int | None = None
    aligns: bool = False
    max_disorder: int = 0
    boundaries: tuple[str, ...] = ()

    @classmethod
    def checked(
        cls,
        batch_length: Duration,
        timeout: Duration | float | None,
        gated: Gated,
        forget_after: Duration | None = None,
        clocks: Clocks = "as_sent",
        max_disorder: Duration = 0,
        boundaries: Iterable[str] | None = None,
    ) -> RateOptions:
        """Check the user's options.

        Raises
        ------
        InvalidArgumentError
            Naming the option and its value.
        """
        disorder = RateRule.checked(batch_length, timeout, max_disorder).max_disorder
        gate_chooser(gated)
        chosen = gated if callable(gated) or isinstance(gated, bool) else frozenset(gated)
        names = tuple(sorted(set(stream_names(boundaries or (), "boundaries"))))
        silence, aligns = checked_silence(forget_after), checked_clocks(clocks)
        return cls(batch_length, timeout, chosen, silence, aligns, disorder, names)

    @property
    def rule(self) -> RateRule:
        """The rule of length, timeout and disorder."""
        return RateRule.checked(self.batch_length, self.timeout, self.max_disorder)

    def facts(self) -> list[Any]:
        """Return the options in a form to compare with a checkpoint's; a function only as being one."""
        rule = self.rule
        ratio: Any = None if rule.factor is None else list(rule.factor.as_integer_ratio())
        ratio = "auto" if rule.auto else ratio
        gated = self.gated
        chosen = "a function" if callable(gated) else gated if isinstance(gated, bool) else sorted(gated)
        further = [*["align"] * self.aligns, *[rule.max_disorder] * (rule.max_disorder > 0)]
        boundaries = [list(self.boundaries)] * bool(self.boundaries)
        return [rule.batch_length, ratio, chosen, self.forget_after, *further, *boundaries]
