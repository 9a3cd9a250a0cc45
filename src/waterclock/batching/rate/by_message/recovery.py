"""Recovers from a stall: closes the stalled window, and starts the next window at the new messages."""

from __future__ import annotations

from operator import attrgetter

from waterclock.batching.batch import Batch
from waterclock.batching.rate.by_message.stall import StallWatch
from waterclock.batching.rate.by_message.window import Assembly
from waterclock.batching.rate.rule import MOVING, plausible_range

_event_time = attrgetter("event_time")


def give_way(assembly: Assembly, stall: StallWatch) -> list[Batch]:
    """Recover if a rival's traffic has moved on."""
    window = assembly.window
    contested = stall.is_contested(assembly.high_water, assembly.rule.batch_length)
    batches = recover(assembly, stall)
    if contested and not window.era_from <= assembly.window.start <= window.era_until:
        assembly.doubtful = False  # the window was compared with a rival that advanced
    return batches


def recover(assembly: Assembly, stall: StallWatch) -> list[Batch]:
    """Close a window that nothing closes."""
    batches: list[Batch] = []
    window = assembly.window
    if assembly.active:
        # Messages that came while the mark stayed show the place of the traffic.
        recent = assembly.active[-stall.unmoved :]
        times, length = list(map(_event_time, recent)), assembly.rule.batch_length
        oldest, anchor = plausible_range(times, length, moving=True)
        if assembly.piled:
            times += map(_event_time, assembly.waiting_messages())
            if plausible_range(times, length, moving=True)[1] != anchor:
                anchor = window.end  # most messages wait for the following windows
        if window.start <= anchor <= window.end:
            batches.append(assembly.close("stall"))
        elif oldest > window.era_until and anchor - oldest >= MOVING * length:
            batches += assembly.follow(oldest, anchor)
        else:
            batches.append(assembly.place_anew(anchor))
    elif assembly.piled:
        assembly.skip(max(1, assembly.windows_to_first()))
    assembly.close_complete(batches)
    # If a doubtful window stays, it may have had too few messages to decide: the next call brings more.
    stays = window.era_from <= assembly.window.start <= window.era_until
    stall.rearm(assembly.high_water if assembly.doubtful and stays else None)
    return batches
