"""The connections of node agents: who they are, what is asked of them, and streams beside."""
