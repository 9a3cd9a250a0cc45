"""Options, output and the names of extras that all commands share."""
