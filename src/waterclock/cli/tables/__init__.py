"""Commands on message tables, their groups and schedules."""
