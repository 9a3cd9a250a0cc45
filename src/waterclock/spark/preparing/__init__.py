"""What `waterclock spark prepare` runs, once on a machine."""
