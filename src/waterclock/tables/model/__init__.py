"""What a message table is, as data and rules: options, columns, lengths of back-off, conditions. Pure."""
