"""A controller as it runs, with the node and the terminal that tests of the command line have."""

from tests.cli.conftest import description_cache, house, terminal

__all__ = ["description_cache", "house", "terminal"]
