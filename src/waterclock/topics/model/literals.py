"""The choices that a topic's calls and commands offer, apart from the libraries that what does them needs."""

from __future__ import annotations

from typing import Literal

By = Literal["publish_time", "event_time", "receive_time", "effective_time"]
"""The times by which messages can be found; effective_time is the smaller of publish_time and receive_time."""

OnAhead = Literal["reject", "keep"]
"""What becomes of a message that is too far ahead: it is not written, or it is, with a warning in the log."""
