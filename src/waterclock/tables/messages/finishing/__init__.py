"""Operations that end or extend a lease: ack, extend, cancel, expire, dead-letter."""
