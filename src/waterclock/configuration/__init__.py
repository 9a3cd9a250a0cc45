"""Reads the TOML files of pipelines, ingests and gateways. Errors name the line in the file."""
