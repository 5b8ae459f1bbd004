"""Backups of sites: schedules, restores, restore drills and targets."""
