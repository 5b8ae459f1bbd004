"""Scheduled tasks of sites."""
