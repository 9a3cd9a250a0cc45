"""Both batching rules as streams over columns: rows in, outcomes and state out."""
