"""What consumers hold: subscriptions, deliveries, and the heartbeat that keeps both."""
