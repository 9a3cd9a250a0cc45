"""Batching by an integer id that messages carry, such as that of a pulse, a train or a frame."""
