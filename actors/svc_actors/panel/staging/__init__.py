"""Staging: a copy of a WordPress site to work on, and the push of the copy back into the site (docs/staging.md).

A copy is a site of its own, with an account and a database of its own. So the separation of customers also keeps a
broken copy away from the live files and the live database.
"""
