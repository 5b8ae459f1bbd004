"""Certificates of sites, and the mail to an owner whose certificate cannot be obtained."""
