"""Maps published messages to Waterclock's messages. The rules are pure: they use no socket, database or clock."""
