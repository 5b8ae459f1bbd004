"""Names of databases and their users in the engines: the site's number and the customer's own name.

    s1001_shop         a database of the site 1001, or a user of its databases
    owner_s1001_shop   the account that owns the content of that database; customers never have its password

Site numbers are never reused, so nobody gets what was another's. No name has a character that would have to be quoted
in SQL; code that quotes all the same checks here as well.
"""

from __future__ import annotations

import re
from typing import Final, NewType

DatabaseName = NewType("DatabaseName", str)
UserName = NewType("UserName", str)
"""An account of an engine."""

LABEL: Final = r"[a-z][a-z0-9_]{0,31}"
"""The customer's name for a database or a user. With its prefixes it is shorter than PostgreSQL's limit of 63 and
MariaDB's of 64."""
_NAME: Final = re.compile(rf"s[1-9][0-9]{{0,14}}_{LABEL}")


def site_prefix(number: int) -> str:
    return f"s{number}_"


def database_name(number: int, label: str) -> DatabaseName:
    return DatabaseName(checked(site_prefix(number) + label))


def user_name(number: int, label: str) -> UserName:
    return UserName(checked(site_prefix(number) + label))


def prefix_of(name: str) -> str:
    """The prefix of all databases and users of the same site: `s1001_`."""
    return name[: name.index("_") + 1]


def owner_of(name: DatabaseName) -> UserName:
    return UserName(f"owner_{checked(name)}")


def is_database(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def checked(name: str) -> str:
    """ValueError for a name in another form: it means that a driver was called wrongly."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a site's database or user")
    return name
