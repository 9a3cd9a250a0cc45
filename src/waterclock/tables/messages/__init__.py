"""What is done with messages: each file is one verb."""
