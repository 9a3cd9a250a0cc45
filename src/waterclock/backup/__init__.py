"""Creates, checks and restores backups of SQLite databases and their ledger files. Others can write during a backup."""
