"""Internals that the whole package uses: quoting, URLs, durable files, time."""
