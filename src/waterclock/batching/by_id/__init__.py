"""Batches by an integer id in the messages, such as the number of a pulse, a train or a frame."""
