"""The statistics of a sharded table, for each shard and in total."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from waterclock.tables.messages.inspecting.stats import TableStats

_ONE_OF_THEM = ("oldest_age", "failure")


@dataclass(frozen=True, slots=True)
class ShardedStats(TableStats):
    """`TableStats` over all shards that answered: sums, the greatest age, and one shard's failure.

    Attributes
    ----------
    by_shard
        Statistics by shard.
    away
        Reasons by shard that is unavailable and not counted.
    """

    by_shard: Mapping[str, TableStats] = field(default_factory=dict[str, TableStats])
    away: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def add_up(cls, by_shard: Mapping[str, TableStats], away: Mapping[str, str]) -> ShardedStats:
        """Add up the statistics of the shards that answered."""
        totals: dict[str, Any] = {}
        for one in fields(TableStats):
            figures = [getattr(stats, one.name) for stats in by_shard.values()]
            known = [figure for figure in figures if figure is not None]
            total = max if one.name in _ONE_OF_THEM else sum
            totals[one.name] = total(known) if known else None
        return cls(**totals, by_shard=by_shard, away=away)
