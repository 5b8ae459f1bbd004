"""What a site's owner keeps from visitors: paths that nobody is shown, and paths that ask for a password.

Both are decided by the path that was asked for, decoded and without what `..` and doubled slashes stand for, before
anything of the site answers. What is asked for inside, as the page of a folder or index.php for what no file is, is
decided anew by its own path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from svc_actors.host.nginx.model import CHALLENGES

_REALM: Final = "A password is needed"
"""Browsers show it, or nothing."""
_WHOLE: Final = "(?s)"
"""Before each expression: without it `.` is every character but a line feed, and a file may have one in its name."""
_ENDS: Final = "(?:/|(?!.))"
"""A path goes for what follows it as well: a folder's files, and what a PHP file is given behind its name. The end is
written as nginx and Python read it alike: their `$` is also before a line feed that ends the path."""
_SPARED: Final = f"(?!{CHALLENGES})"
"""Certificates depend on it, whatever is denied."""


def expression(pattern: str) -> str:
    """The regular expression of paths for a pattern as .gitignore has them (`DeniedPattern`). It takes a time that
    grows with the path's length alone: there is one place at most that is tried again. It is read behind `(?s)`."""
    ends, named = ("/", "[^/]*/") if pattern.endswith("/") else (_ENDS, "")
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
    return re.match(f"{_WHOLE}{_SPARED}{expression(pattern)}", path) is not None


def denied_rules(patterns: tuple[str, ...]) -> Iterator[str]:
    for pattern in patterns:
        yield f'if ($uri ~ "{_WHOLE}^{_SPARED}{expression(pattern)}") {{'
        yield "return 403;"
        yield "}"


def protected_rules(passwords: Mapping[str, Path]) -> Iterator[str]:
    """`passwords`: the file of each path. The site's programs are told who it is, `$svc_user`, and of the header only
    what is not nginx's own matter, `$svc_authorization`: WordPress would take this password for one of its own."""
    yield 'set $svc_passwords "";'
    yield "set $svc_realm off;"
    yield 'set $svc_user "";'
    yield "set $svc_authorization $http_authorization;"
    # The innermost is the last.
    for path in sorted(passwords, key=len):
        within = "/" if path == "/" else f"{re.escape(path)}{_ENDS}"
        yield f'if ($uri ~ "{_WHOLE}^{_SPARED}{within}") {{'
        yield f'set $svc_passwords "{passwords[path]}";'
        yield f'set $svc_realm "{_REALM}";'
        yield "set $svc_user $remote_user;"
        yield 'set $svc_authorization "";'
        yield "}"
    yield "auth_basic $svc_realm;"
    yield "auth_basic_user_file $svc_passwords;"
