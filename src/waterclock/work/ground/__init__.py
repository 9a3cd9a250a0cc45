"""What every part of a worker uses: handlers, outcomes, counts, sources."""
