"""Which paths, redirects and settings of PHP a site may have, as patterns and bounds.

The models of the web server and of PHP are made of them (`nginx.model`, `php.settings`), and what judges .htaccess
files in the confined helper compares with them: it knows the standard library alone, and so does this module.
"""

from __future__ import annotations

import re
from typing import Final
from unicodedata import category

CHALLENGES: Final = "/.well-known/acme-challenge/"
"""Answered for every host, whatever else its site says (RFC 8555, section 8.3)."""

REQUEST_PATH: Final = r"^/[\w/.~!&()*+,=:@-]*$"
LONGEST_PATH: Final = 512
REDIRECT_TARGET: Final = (
    r"^(https?://[A-Za-z0-9.\[\]:-]+(/[A-Za-z0-9/._~!&()*+,=:@%?#-]*)?"
    r"|/([A-Za-z0-9._~!&()*+,=:@%?#-][A-Za-z0-9/._~!&()*+,=:@%?#-]*)?)$"
)
LONGEST_TARGET: Final = 2048
REDIRECT_STATUSES: Final = frozenset({301, 302, 307, 308})

_WORD: Final = r"[\w.~!&()+,=:@-]+"
DENIED_PATTERN: Final = rf"^(/({_WORD}/)*(\*\*/)?)?(\*{_WORD}|{_WORD}\*?)/?$"
PROTECTED_PLACE: Final = rf"^/({_WORD}(/{_WORD})*)?$"
LONGEST_PATTERN: Final = 255

MEMORY_LIMIT_MIB: Final = (16, 4096)
UPLOAD_MIB: Final = (1, 500)
"""With the rest of a form it stays below what the web server takes of a request."""
EXECUTION_SECONDS: Final = (1, 300)
"""At most as long as the web server waits for an answer."""
INPUT_VARIABLES: Final = (100, 100_000)
TIME_ZONE: Final = r"^[A-Z][A-Za-z0-9_+-]{0,30}(/[A-Z][A-Za-z0-9_+-]{0,30}){0,2}$"
LONGEST_TIME_ZONE: Final = 64

_SETTINGS: Final = {
    "memory_limit_mib": MEMORY_LIMIT_MIB,
    "upload_max_filesize_mib": UPLOAD_MIB,
    "max_execution_time": EXECUTION_SECONDS,
    "max_input_vars": INPUT_VARIABLES,
}
WHOLE: Final = "(?s)"
"""Before each expression: without it `.` is every character but a line feed, and a file may have one in its name."""
ENDS: Final = "(?:/|(?!.))"
"""A path goes for what follows it as well: a folder's files, and what a PHP file is given behind its name. The end is
written as nginx and Python read it alike: their `$` is also before a line feed that ends the path."""
SPARED: Final = f"(?!{CHALLENGES})"
"""Certificates depend on it, whatever is denied."""


def expression(pattern: str) -> str:
    """The regular expression of paths for a pattern as .gitignore has them (`DENIED_PATTERN`). It takes a time that
    grows with the path's length alone: there is one place at most that is tried again. It is read behind `(?s)`."""
    ends, named = ("/", "[^/]*/") if pattern.endswith("/") else (ENDS, "")
    folder, _, name = pattern.removesuffix("/").rpartition("/")
    anywhere = folder.endswith("/**") or not pattern.startswith("/")
    beneath = re.escape(folder.removesuffix("/**"))
    if name.startswith("*"):
        return f"{beneath}/{'.*' if anywhere else '[^/]*'}{re.escape(name[1:])}{ends}"
    among = "(?:.*/)?" if anywhere else ""
    if name.endswith("*"):
        return f"{beneath}/{among}{re.escape(name[:-1])}{named}"
    return f"{beneath}/{among}{re.escape(name)}{ends}"


def is_denied(pattern: str, path: str) -> bool:
    return re.match(f"{WHOLE}{SPARED}{expression(pattern)}", path) is not None


def is_denied_pattern(text: str) -> bool:
    return _fits(DENIED_PATTERN, LONGEST_PATTERN, text)


def is_protected_place(text: str) -> bool:
    return _fits(PROTECTED_PLACE, LONGEST_PATTERN, text)


def is_redirect(source: str, target: str, status: int) -> bool:
    """Of a path that nginx compares, to an address or a path, with a status that a redirect has."""
    fits = _fits(REQUEST_PATH, LONGEST_PATH, source) and _fits(REDIRECT_TARGET, LONGEST_TARGET, target)
    return fits and status in REDIRECT_STATUSES


def is_setting(name: str, value: int | bool | str) -> bool:
    """PHP of a site can have this value of this setting (`PhpSettings`)."""
    if name == "display_errors":
        return isinstance(value, bool)
    if name == "timezone":
        return isinstance(value, str) and _fits(TIME_ZONE, LONGEST_TIME_ZONE, value)
    low, high = _SETTINGS[name]
    return isinstance(value, int) and low <= value <= high


def _fits(pattern: str, longest: int, text: str) -> bool:
    """As pydantic takes it: `$` is the end of the text, and a number that is no digit (²) is no letter."""
    if len(text) > longest or text.endswith("\n"):
        return False
    return re.match(pattern, text) is not None and not any(category(letter) == "No" for letter in text)
