"""Typed payloads: how put writes objects, how handlers read them back, and which types allow both."""
