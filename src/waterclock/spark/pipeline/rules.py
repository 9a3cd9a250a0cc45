"""Checks a pipeline's batching rule and start against its checkpoint before the stream starts."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from waterclock.errors import InvalidArgumentError
from waterclock.spark.pipeline.definition import By, Pipeline
from waterclock.spark.runtime.partitions import rule_in
from waterclock.spark.streaming.batching import event_time_outcomes, id_outcomes, rate_aware_outcomes
from waterclock.time import format_duration, format_time, to_duration

_LENGTHS = ("window", "max_delay", "max_lead", "gap", "batch_length", "timeout", "forget_after", "max_disorder")
_MAY_CHANGE = ("df", "buckets", "max_skew", "ended", "span", "lengths")
"""Options outside the rule: they decide when batches are emitted, but do not change them."""


OUTCOMES_BY: dict[By, Callable[..., DataFrame]] = {
    "event_time": event_time_outcomes,
    "rate": rate_aware_outcomes,
    "id": id_outcomes,
}
"""The function that batches, by the name of the rule."""


def named_rule(pipeline: Pipeline) -> dict[str, Any]:
    """Return the rule by the names of the file, defaults included, in one spelling for each value."""
    find = OUTCOMES_BY[pipeline.by]
    rule: dict[str, Any] = {"by": pipeline.by}
    for name, parameter in inspect.signature(find).parameters.items():
        if name in _MAY_CHANGE:
            continue
        value = pipeline.rule.get(name, parameter.default)
        if value == math.inf:
            value = "inf"
        elif name in _LENGTHS and value is not None and value != "auto":
            value = format_duration(to_duration(value, name))
        if name == "on_conflict" and value is None:
            value = "split" if pipeline.rule.get("gap") is None else "keep"
        if name in ("boundaries", "streams") and value is not None:
            value = frozenset(value)
        rule[name] = sorted(value) if isinstance(value, frozenset) else value
    if pipeline.adaptive is not None:
        rule["batch_length"] = pipeline.adaptive.text
    return rule


def fixed_options(pipeline: Pipeline) -> dict[str, Any]:
    """Return what a checkpoint fixes: the rule, and the start of the stream, which is looked up only once."""
    start = next(iter(pipeline.source.start.values()), "earliest")
    return named_rule(pipeline) | {"start": format_time(int(start)) if start.lstrip("-").isdigit() else start}


def refuse_changed_rule(spark: SparkSession, pipeline: Pipeline) -> None:
    """Raise InvalidArgumentError if the checkpoint has another rule or start; the error names the differences."""
    rule, written = fixed_options(pipeline), rule_in(spark, pipeline.checkpoint)
    if written is None:
        return
    # A checkpoint that is older than an option lacks its name, which means None.
    names = [name for name in {**written, **rule} if written.get(name) != rule.get(name)]
    if not names:
        return
    none_of_them = f"no {' or '.join(names)}"
    was = ", ".join(f"{name} = {written[name]}" for name in names if name in written) or none_of_them
    now = ", ".join(f"{name} = {rule[name]}" for name in names if name in rule) or none_of_them
    raise InvalidArgumentError(
        f"cannot start pipeline {pipeline.name!r}: its checkpoint was written with {was}, and the file has"
        f" {now}. Change the file back, or start with another checkpoint"
    )
