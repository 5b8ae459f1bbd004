"""Staging: a copy of a WordPress site to work on, and the push of the copy back into the site (docs/staging.md).

A copy is a site of its own, with an account and a database of its own. So the walls that keep customers apart keep a
broken copy from the live files and the live database, too.
"""
