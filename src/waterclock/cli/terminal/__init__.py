"""Options, output and the names of extras, which all commands share."""
