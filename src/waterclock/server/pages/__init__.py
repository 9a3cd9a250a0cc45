"""The pages of ``waterclock serve``: one file for each. They use the functions and rights of the HTTP interface."""
