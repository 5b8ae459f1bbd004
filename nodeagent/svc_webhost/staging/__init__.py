"""Staging copies of a WordPress: copies its files, and rewrites its database and the URLs in it for another site."""
