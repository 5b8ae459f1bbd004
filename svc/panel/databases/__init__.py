"""Databases of sites, their users and exports."""
