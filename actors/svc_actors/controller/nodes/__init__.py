"""Nodes: the actor, its record, and how a host joins."""
