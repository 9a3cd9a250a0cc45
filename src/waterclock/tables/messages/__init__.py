"""Operations on messages: each file is one verb."""
