"""The formats of requests and responses: bodies in JSON and Arrow, payloads, and the shapes of objects."""
