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

from svc_actors.host.accepted import ENDS, SPARED, WHOLE, expression
from svc_actors.host.nginx.visitors import guesses_bounded, guesses_count

_REALM: Final = "A password is needed"
"""Browsers show it, or nothing."""


def denied_rules(patterns: tuple[str, ...]) -> Iterator[str]:
    for pattern in patterns:
        yield f'if ($uri ~ "{WHOLE}^{SPARED}{expression(pattern)}") {{'
        yield "return 403;"
        yield "}"


def protected_rules(passwords: Mapping[str, Path]) -> Iterator[str]:
    """`passwords`: the file of each path. The site's programs are told who it is, `$svc_user`, and of the header only
    what is not nginx's own matter, `$svc_authorization`: WordPress would take this password for one of its own."""
    yield from guesses_bounded()
    yield 'set $svc_passwords "";'
    yield "set $svc_realm off;"
    yield 'set $svc_user "";'
    yield "set $svc_authorization $http_authorization;"
    # The innermost is the last.
    for path in sorted(passwords, key=len):
        within = "/" if path == "/" else f"{re.escape(path)}{ENDS}"
        yield f'if ($uri ~ "{WHOLE}^{SPARED}{within}") {{'
        yield f'set $svc_passwords "{passwords[path]}";'
        yield f'set $svc_realm "{_REALM}";'
        yield "set $svc_user $remote_user;"
        yield 'set $svc_authorization "";'
        yield guesses_count()
        yield "}"
    yield "auth_basic $svc_realm;"
    yield "auth_basic_user_file $svc_passwords;"
