"""Zones of sites and their records."""
