"""Commands on topics and subscriptions."""
