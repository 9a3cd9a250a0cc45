"""Typed payloads: how put writes objects, how handlers read them, and which types support both."""
