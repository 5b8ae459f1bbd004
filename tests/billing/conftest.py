"""Modules of billing systems are tried against a whole controller, whose terminal these tests use as its operator."""

from tests.cli.conftest import description_cache

__all__ = ["description_cache"]
