"""What arrives from outside: other systems' messages, read into ours."""
