"""The pages of ``waterclock serve``, one file for each. Pages use the functions and rights of the HTTP interface."""
