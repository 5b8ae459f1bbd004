"""What `tools/test` does once the tools are installed: lanes of tests, second attempts, one report."""
