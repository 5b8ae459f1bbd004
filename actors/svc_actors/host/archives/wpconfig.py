"""wp-config.php of an imported site: which database it names, and the same file with another one.

It is text here and nothing else: the constants are found by their form, and everything else stays byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_VALUE: Final = rb"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^'";)]{0,200})"""
DATABASE: Final = ("DB_NAME", "DB_USER", "DB_PASSWORD", "DB_HOST")


def database_of(text: bytes) -> str | None:
    """The name of the database, where it stands there as a plain string."""
    found = re.search(_definition("DB_NAME"), text, re.DOTALL)
    if found is None:
        return None
    value = found[2].strip()
    if len(value) < 3 or value[:1] not in (b"'", b'"') or value[-1:] != value[:1]:
        return None
    return value[1:-1].decode(errors="replace")


def rewritten(text: bytes, values: Mapping[str, str], paths: Mapping[str, str]) -> bytes:
    """The same with these constants, and these folders in the place of others. Raises ValueError where one of the
    constants is not there to be replaced."""
    for name, value in values.items():
        text, count = _replaced(_definition(name), text, quoted(value))
        if not count:
            raise ValueError(f"it does not define {name} as WordPress does")
    for old, new in sorted(paths.items(), key=lambda pair: -len(pair[0])):
        text, _ = _replaced(rb"()(" + re.escape(old.rstrip("/").encode()) + rb")(?=[/'\"])()", text, new.encode())
    return text


def _replaced(pattern: bytes, text: bytes, value: bytes) -> tuple[bytes, int]:
    """What stands between the first and the third group is `value`."""
    return re.subn(pattern, lambda found: found[1] + value + found[3], text, flags=re.DOTALL)


def quoted(text: str) -> bytes:
    """As a PHP string in single quotes, in which only quote and backslash mean anything."""
    return b"'" + text.replace("\\", "\\\\").replace("'", "\\'").encode() + b"'"


def _definition(name: str) -> bytes:
    return rb"""(define\s*\(\s*['"]""" + name.encode() + rb"""['"]\s*,\s*)(""" + _VALUE + rb""")(\s*\)\s*;)"""
