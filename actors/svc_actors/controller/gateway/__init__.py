"""The connections of node agents: their identity, the operations asked of them, and byte streams."""
