"""The steps of ``waterclock spark prepare``, which runs once on a machine."""
