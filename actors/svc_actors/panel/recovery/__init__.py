"""Recovery: the server's encrypted manifest at its backup targets, and how a new server takes the place of a lost one
with it.

Why: docs/decisions/0053-recovery.md.
"""
