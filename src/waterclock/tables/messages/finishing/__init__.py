"""What ends or prolongs a lease: ack, extend, cancel, expire, dead-letter."""
