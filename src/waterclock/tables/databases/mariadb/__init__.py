"""Message tables on MariaDB."""
