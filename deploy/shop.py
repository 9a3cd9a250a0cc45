"""The handler of the compose file. Write your own here."""

import logging

import waterclock as wc


def handle(delivery: wc.Delivery) -> None:
    """Log a message."""
    logging.getLogger(__name__).warning("got %r", delivery.payload)
