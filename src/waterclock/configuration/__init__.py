"""TOML files that describe what to run: read, with errors that name the line."""
