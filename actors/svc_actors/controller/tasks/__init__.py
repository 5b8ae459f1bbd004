"""Tasks: their records, and the runner that brings each to an outcome."""
