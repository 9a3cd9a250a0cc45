"""The command line: one file per noun. Data goes to stdout, talk to stderr; exit 0 done, 1 failed, 2 wrong usage."""

from waterclock.cli.app import main

__all__ = ["main"]
