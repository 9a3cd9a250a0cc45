"""How published messages become ours: pure rules, without a socket, a database or a clock."""
