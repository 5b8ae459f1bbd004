"""What composes, supervises and watches a running service: the controller, the panel, and what both run beside their
operations. The command line starts it, and nothing here knows that."""
