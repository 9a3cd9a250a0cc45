"""Operations on messages."""
