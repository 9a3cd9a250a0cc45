"""The entry point of ``python -m waterclock``, which runs the command ``waterclock``."""

from waterclock.cli import main

main()
