"""Copies of a WordPress: what its files, its database and the addresses in it become in another site."""
