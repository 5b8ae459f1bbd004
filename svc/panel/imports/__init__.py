"""Imports of sites from other hosts: archives, SSH, and the verification afterwards."""
