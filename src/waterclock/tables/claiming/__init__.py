"""Which messages go out: rows, groups, rates."""
