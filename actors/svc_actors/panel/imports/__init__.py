"""Imports of sites from other hosts: an archive is uploaded, read, planned, and made into sites."""
