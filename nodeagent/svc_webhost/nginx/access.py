"""Rules that keep visitors out: of denied paths and paths that require a password, of staging copies, and of paths of a
WordPress. And the password files, readable for root and nginx's workers alone:

    passwords/s1001               of a staging copy
    passwords/s1001-3f786850e387  of a path that its owner protects

The owner's rules match the requested path, decoded and with `..` and doubled slashes resolved, before anything of the
site answers. Internal redirects, such as to a folder's index page or to index.php for missing files, are checked again
with their own path.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

from svc_common.durable import put_in_place
from svc_webhost.accepted import ENDS, SPARED, WHOLE, expression
from svc_webhost.folders import HostFolders
from svc_webhost.nginx.model import Login, SiteServer
from svc_webhost.nginx.visitors import guesses_bounded, guesses_count

_REALM: Final = "A password is needed"
"""The realm, which browsers may show."""

NOT_LISTED: Final = 'add_header X-Robots-Tag "noindex, nofollow" always;'
OWN_OF_COPIES: Final = ("/robots.txt", "/wp-cron.php")
"""Paths that staging copies and previews answer otherwise than their site."""
ROBOTS: Final = r"User-agent: *\nDisallow: /\n"
"""The robots.txt of what search engines must not list."""

_NOTHING: Final = (
    # This includes copies that editors leave (wp-config.php~, wp-config.php.bak), and files of another WordPress in a
    # subfolder.
    r"~* /wp-config(?:-sample)?\.php",
    # A single request to xmlrpc.php can try hundreds of passwords.
    r"~* /xmlrpc\.php(?:/|\z)",
    # Uploads are shown but never run: if a form for pictures accepts a program, the program must not be run.
    r"~* ^/wp-content/(?:uploads|upgrade|languages)/.*\.(?:php[0-9]?|phps|phtml?|phar|pht)\.?(?:/|\z)",
    # Programs of other kinds are not shown in these folders, either; Wordfence denies them together with those of PHP.
    r"~* ^/wp-content/uploads/.*\.(?:pl|py|jsp|asp|htm|shtml|sh|cgi)\z",
    # The log of WP_DEBUG_LOG, and database dumps that were written into the site.
    r"~* ^/wp-content/.*\.(?:log|sql)(?:\.[a-z0-9]+)?\z",
    r"~* /debug\.log\z",
    # Parts of WordPress's own programs, which are included but never requested.
    r"~* ^/wp-admin/includes/",
    r"~* ^/wp-includes/(?:[^/]+\.php(?:/|\z)|js/tinymce/langs/.+\.php|theme-compat/)",
    # These pages create an administrator if the database is empty.
    r"~* ^/wp-admin/(?:install|setup-config)\.php(?:/|\z)",
    # These files reveal the versions of WordPress and of its plugins and themes.
    r"~* /(?:readme|license|liesmich|licencia)\.(?:html|txt)\z",
)


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


def staged_rules(passwords: Path) -> Iterator[str]:
    yield from guesses_bounded()
    yield guesses_count()
    yield 'auth_basic "Staging";'
    yield f'auth_basic_user_file "{passwords}";'
    yield NOT_LISTED
    # Crawlers have no password, but must be able to read robots.txt.
    yield "location = /robots.txt {"
    yield "auth_basic off;"
    yield "default_type text/plain;"
    yield f'return 200 "{ROBOTS}";'
    yield "}"
    # Due tasks are run by the live site only.
    yield "location = /wp-cron.php {"
    yield "return 404;"
    yield "}"


def challenge_rules() -> Iterator[str]:
    """Rules for the location of challenges by certificate authorities."""
    yield "auth_basic off;"


def wordpress_rules() -> Iterator[str]:
    for match in _NOTHING:
        # The expression is in quotes, because a brace would otherwise open a block. `(?s)`: `.` matches every
        # character, including a line feed in a name.
        operator, _, expression = match.partition(" ")
        yield f'location {operator} "(?s){expression}" {{'
        yield "return 404;"
        yield "}"


def password_file(folders: HostFolders, number: int, path: str | None = None) -> Path:
    """The password file of a staging copy, or of a protected `path` of a site."""
    of_path = "" if path is None else f"-{sha256(path.encode()).hexdigest()[:12]}"
    return folders.site_passwords / f"s{number}{of_path}"


def hold_passwords(folders: HostFolders, site: SiteServer, worker_user: str) -> None:
    """Make the site have exactly its own password files. Blocks."""
    wanted = _wanted(folders, site)
    for file in (password_file(folders, site.number), *folders.site_passwords.glob(f"s{site.number}-*")):
        if file not in wanted:
            file.unlink(missing_ok=True)
    for file, logins in wanted.items():
        text = "".join(f"{each.login}:{each.verifier}\n" for each in logins)
        if not file.exists() or file.read_text() != text:
            _write(file, text, worker_user)


def _wanted(folders: HostFolders, site: SiteServer) -> dict[Path, Sequence[Login]]:
    if site.staged is not None:
        return {password_file(folders, site.number): (site.staged,)}
    return {password_file(folders, site.number, each.path): each.logins for each in site.protected}


def _write(file: Path, text: str, worker_user: str) -> None:
    file.parent.mkdir(mode=0o711, exist_ok=True)
    new = file.with_suffix(".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640), "w") as opened:
        if os.geteuid() == 0:
            os.fchown(opened.fileno(), 0, pwd.getpwnam(worker_user).pw_gid)
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())
    put_in_place(new, file)
