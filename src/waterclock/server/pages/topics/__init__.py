"""The pages of topics: ledgers and subscriptions over time, and the timeline of batches."""
