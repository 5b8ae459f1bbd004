"""Backups of machines: schedules, retention and targets."""
