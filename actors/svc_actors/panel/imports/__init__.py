"""Imports of sites from other hosts: an archive is uploaded or fetched, read, planned, and made into sites.

Why: docs/decisions/0052-imports.md.
"""
