"""The commands. Related commands share a file. Results go to stdout; notes and errors go to stderr.

The exit codes are 0 for success, 1 for failure, and 2 for wrong usage.
"""

from __future__ import annotations

import gc
import sys


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit with its code; Ctrl-C also ends it quietly while the libraries are loaded."""
    try:
        from waterclock.work.running.signals import remember_interrupts

        remember_interrupts()
        from waterclock.cli.app import main as run_command

        run_command(arguments)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        # Python looks for garbage as it ends: a fifth of a short command's time. Only a user's handlers may need that.
        if "waterclock.cli.work" not in sys.modules:
            gc.freeze()
