"""Backups of the controller itself: taken while the service runs, restored on an empty machine (docs/backup.md)."""
