"""Code that all parts of a worker share: handlers, outcomes, counts and sources."""
