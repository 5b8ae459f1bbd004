"""Scheduled tasks of sites: when they are due, and the results of their runs."""
