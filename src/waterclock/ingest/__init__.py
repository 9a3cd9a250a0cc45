"""Messages of other systems, mapped to ours."""
