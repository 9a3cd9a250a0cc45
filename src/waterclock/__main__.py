"""``python -m waterclock`` is the command ``waterclock``."""

from waterclock.cli import main

main()
