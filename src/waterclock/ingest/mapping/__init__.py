"""Maps published messages to Waterclock's messages: pure rules, without a socket, a database or a clock."""
