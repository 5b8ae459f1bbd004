"""Operations on traffic and its limits."""
