"""The closed registry of typed operations: what can be asked of the service, by whom, and what it answers."""
