"""Put messages: ids, unique keys, schedules."""
