"""The hosting panel's state: its actors, records, work and loops, by area."""
