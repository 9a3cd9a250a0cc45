"""Private PostgreSQL, MariaDB and Mosquitto servers for the tests: found or installed, started, kept and stopped."""
