"""Pure rules of time: back-off, cron, rates, sweeps."""
