"""What compares records with what hosts say, again and again."""
