"""Waterclock: keeps messages found by time, batches them by when they happened, hands them out as work done once."""
