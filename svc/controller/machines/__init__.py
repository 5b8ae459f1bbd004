"""Operations on machines, their plans, keys and consoles."""
