"""Nodes: the actor, its record, and how a host becomes one."""
