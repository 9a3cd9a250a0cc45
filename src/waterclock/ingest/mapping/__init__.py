"""The mapping of published messages to ours: pure rules, without a socket, a database or a clock."""
