"""The pages of ``waterclock serve``: one file for each page, on the same functions and rights as the HTTP interface."""
