"""Putting messages: ids, unique keys, schedules."""
