"""Message tables as data and rules: options, columns, back-off, conditions. Pure."""
