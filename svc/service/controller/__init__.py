"""The controller as a running service: its parts put together, what watches them, and backups of it all."""
