"""Rules of time: back-off, cron, rates, sweeps."""
