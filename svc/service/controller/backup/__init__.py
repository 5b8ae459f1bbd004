"""Backups of the controller itself: taken while the service runs, restored on an empty machine (docs/backup.md).

Why: docs/decisions/0021-controller-backup-and-restore.md.
"""
