"""What tests stand on: services, hosts and callers that a test sets up, one module an area."""
