"""Tasks: their records, and what runs them until each has an outcome."""
