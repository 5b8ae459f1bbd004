"""The actor runtime: typed messages to supervised Trio tasks. It knows Trio, and nothing of ours."""


class DomainError(Exception):
    """An error that is an answer: the asker gets it, and the actor lives on."""
