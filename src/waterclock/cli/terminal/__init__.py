"""Code that all commands share: options, output, and the names of extras."""
