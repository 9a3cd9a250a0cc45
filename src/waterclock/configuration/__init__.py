"""TOML files of pipelines, ingests and gateways: read, with errors that name the line."""
