"""Volumes: additional disks of machines, which outlive them."""
