"""Keys of messages that are limited or take turns."""
