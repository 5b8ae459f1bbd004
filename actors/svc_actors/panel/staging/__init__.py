"""Staging: a copy of a WordPress site to work on, and the way back into the site (docs/staging.md)."""
