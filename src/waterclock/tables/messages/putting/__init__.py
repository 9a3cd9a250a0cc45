"""Puts messages into tables, with ids, unique keys and schedules."""
