"""When something happens next: back-off, cron, rates, sweeps. Pure rules."""
