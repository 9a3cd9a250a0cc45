"""Subscriptions, deliveries, and the heartbeat that keeps both alive."""
