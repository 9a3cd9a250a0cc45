"""The data and rules of message tables: options, columns, back-off, conditions. They do no I/O."""
