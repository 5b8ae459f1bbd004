"""The toys of the HTTP tests serve here as well."""

from tests.http.conftest import toys

__all__ = ["toys"]
