"""The formats of requests and answers: bodies in JSON and Arrow, payloads, and the shapes of objects."""
