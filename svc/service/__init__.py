"""Composes, supervises and watches a running service: the controller, the panel, and what both run besides their
operations. The command line starts it; nothing here depends on the command line."""
