"""Databases: one interface to SQLite, PostgreSQL and MariaDB, and the catalogue of topics and message tables."""
