"""Puts messages: ids, unique keys, schedules."""
