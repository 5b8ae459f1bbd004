"""Operations on backups of machines."""
