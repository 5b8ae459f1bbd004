"""Backups of machines: when they are due, what is kept, and who begins them."""
