"""The work of `waterclock spark prepare`, once on a machine."""
