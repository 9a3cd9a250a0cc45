"""Makes, checks and restores backups of SQLite databases with their ledger files. Others can write during a backup."""
