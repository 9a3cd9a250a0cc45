"""The steps of ``waterclock spark prepare``, which prepares a machine once."""
