"""Internal helpers for the whole package: quoting, URLs, durable files, time."""
