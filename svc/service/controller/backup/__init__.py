"""Backups of the controller itself: taken beside the running service, restored on an empty machine (docs/backup.md)."""
