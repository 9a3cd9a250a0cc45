"""Typed payloads: how a put writes objects, how handlers read them, and which types can be used for both."""
