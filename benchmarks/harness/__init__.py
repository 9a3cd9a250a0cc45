"""Waterclock in the public benchmark of queues in PostgreSQL: an adapter, and a script that runs the benchmark."""
