"""Imports of sites from other hosts: an archive is uploaded or fetched, read, planned, and made into sites."""
