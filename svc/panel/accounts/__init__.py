"""Customers' accounts: people and their members, plans, orders of a billing system, termination."""
