"""Subscriptions, deliveries, and the heartbeat that extends their leases."""
