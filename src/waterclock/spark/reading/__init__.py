"""Topics and message tables as sources of Spark."""
