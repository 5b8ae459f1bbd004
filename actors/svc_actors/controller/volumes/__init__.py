"""Volumes: disks beside a machine's first, which outlive it."""
