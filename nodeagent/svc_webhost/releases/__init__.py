"""The panel's installed releases, and the program that tries a new one and goes back if it fails.

The standard library alone: the switching program must work whatever a new release is like.

Why: docs/decisions/0054-health-updates-licensing.md.
"""
