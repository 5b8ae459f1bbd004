"""Access rules of a site's owner: denied paths, and paths that require a password.

Both match the requested path, decoded and with `..` and doubled slashes resolved, before anything of the site answers.
Internal redirects, such as to a folder's index page or to index.php for missing files, are checked again with their own
path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from svc_webhost.accepted import ENDS, SPARED, WHOLE, expression
from svc_webhost.folders import HostFolders
from svc_webhost.nginx.model import SiteServer
from svc_webhost.nginx.passwords import password_file
from svc_webhost.nginx.visitors import guesses_bounded, guesses_count

_REALM: Final = "A password is needed"
"""The realm, which browsers may show."""


def access_rules(site: SiteServer, folders: HostFolders) -> Iterator[str]:
    yield from _denied_rules(site.denied)
    if site.asks_for_passwords:
        files = {each.path: password_file(folders, site.number, each.path) for each in site.protected}
        yield from _protected_rules(files)


def _denied_rules(patterns: tuple[str, ...]) -> Iterator[str]:
    for pattern in patterns:
        yield f'if ($uri ~ "{WHOLE}^{SPARED}{expression(pattern)}") {{'
        yield "return 403;"
        yield "}"


def _protected_rules(passwords: Mapping[str, Path]) -> Iterator[str]:
    """`passwords`: the password file by path. The site's programs get the login, `$svc_user`, and the header only if
    nginx does not use it itself, `$svc_authorization`: WordPress would take this password for one of its own."""
    yield from guesses_bounded()
    yield 'set $svc_passwords "";'
    yield "set $svc_realm off;"
    yield 'set $svc_user "";'
    yield "set $svc_authorization $http_authorization;"
    # Sorted by length, because the last match wins: so the innermost path applies.
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
