"""Backups of machines: their disks, copied while the guest goes on, into a store outside of the host."""
