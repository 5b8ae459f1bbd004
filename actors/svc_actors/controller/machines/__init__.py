"""Machines: the actor, its states, and the work that its orders cause."""
