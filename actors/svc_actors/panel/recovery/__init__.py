"""Recovery: the server's encrypted manifest at its backup targets, and how a new server becomes a lost one from it.

Why: docs/decisions/0053-recovery.md.
"""
