"""The allowed values of arguments of a topic's methods and commands.

Importing this module loads no other library, so commands start fast.
"""

from __future__ import annotations

from typing import Literal

By = Literal["publish_time", "event_time", "receive_time", "effective_time"]
"""The times by which messages can be found; effective_time is the smaller of publish_time and receive_time."""

OnAhead = Literal["reject", "keep"]
"""The treatment of a message that is too far ahead: rejected, or kept with a warning in the log."""
