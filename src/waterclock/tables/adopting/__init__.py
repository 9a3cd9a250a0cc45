"""Tables that were there before."""
