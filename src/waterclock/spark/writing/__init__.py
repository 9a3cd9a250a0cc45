"""Message tables and topics as sinks of Spark."""
