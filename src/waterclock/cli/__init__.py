"""The commands; related ones share a file. Data goes to stdout, messages to stderr.

Exit codes: 0 success, 1 failure, 2 usage.
"""

from __future__ import annotations

import sys


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit with its code; Ctrl-C also ends it quietly while the libraries are loaded."""
    try:
        from waterclock.cli.app import main as run_command

        run_command(arguments)
    except KeyboardInterrupt:
        sys.exit(130)
