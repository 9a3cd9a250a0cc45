"""What every command shares: options, output, the names of extras."""
