"""The closed registry of typed operations: which operations the service has, who may call them, and what they
answer."""
