"""Operations on nodes and locations."""
