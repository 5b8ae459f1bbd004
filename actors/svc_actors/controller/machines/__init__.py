"""Machines: the actor, its statuses, and the work of its tasks."""
