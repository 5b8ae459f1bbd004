"""Which node takes a machine."""
