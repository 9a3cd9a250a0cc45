"""The pages of message tables, their messages and groups."""
