"""Releases of the panel side by side: where they lie, and the program that tries a new one and goes back if it fails.

The standard library alone: the program that switches runs beside whatever a new release is like.
"""
