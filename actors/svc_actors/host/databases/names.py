"""What databases and their users are called in the engines: the site's number and what the customer calls it.

    s1001_shop         a database of the site 1001, or a user of its databases
    owner_s1001_shop   the account that owns what is in that database; customers never have its password

Site numbers are never given twice, so that nobody comes upon what was another's. No name has a character that SQL
would need to be quoted for: whatever else is quoted, is checked here as well.
"""

from __future__ import annotations

import re
from typing import Final, NewType

DatabaseName = NewType("DatabaseName", str)
UserName = NewType("UserName", str)
"""Of an account of an engine."""

LABEL: Final = r"[a-z][a-z0-9_]{0,31}"
"""What a customer calls a database or a user. With prefixes it is shorter than PostgreSQL's 63 and MariaDB's 64."""
_NAME: Final = re.compile(rf"s[1-9][0-9]{{0,14}}_{LABEL}")


def site_prefix(number: int) -> str:
    return f"s{number}_"


def database_name(number: int, label: str) -> DatabaseName:
    return DatabaseName(checked(site_prefix(number) + label))


def user_name(number: int, label: str) -> UserName:
    return UserName(checked(site_prefix(number) + label))


def prefix_of(name: str) -> str:
    """The beginning that all databases and users of the same site have: `s1001_`."""
    return name[: name.index("_") + 1]


def owner_of(name: DatabaseName) -> UserName:
    return UserName(f"owner_{checked(name)}")


def is_database(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def checked(name: str) -> str:
    """ValueError for what is no name of ours: a driver that is given one has been called wrongly."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a site's database or user")
    return name
