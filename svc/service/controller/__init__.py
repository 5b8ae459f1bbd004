"""The controller as a running service: its composition, its supervision, and its backups."""
