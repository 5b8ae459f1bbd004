"""Scheduled tasks of sites: when they are due, and what became of their runs."""
