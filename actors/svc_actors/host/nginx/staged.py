"""What nginx adds to a site that is a copy to work on: a password, and no place in any search engine."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

from svc_actors.durable import put_in_place
from svc_actors.host.folders import HostFolders
from svc_actors.host.nginx.model import Staged

_ROBOTS = r"User-agent: *\nDisallow: /\n"


def password_file(folders: HostFolders, number: int) -> Path:
    return folders.site_passwords / f"s{number}"


def staged_rules(passwords: Path) -> Iterator[str]:
    yield 'auth_basic "Staging";'
    yield f'auth_basic_user_file "{passwords}";'
    yield 'add_header X-Robots-Tag "noindex, nofollow" always;'
    # Crawlers shall be told, and have no password.
    yield "location = /robots.txt {"
    yield "auth_basic off;"
    yield "default_type text/plain;"
    yield f'return 200 "{_ROBOTS}";'
    yield "}"
    # What is due is done by the site that it is a copy of.
    yield "location = /wp-cron.php {"
    yield "return 404;"
    yield "}"


def challenge_rules() -> Iterator[str]:
    """In the location of what certificate authorities ask for."""
    yield "auth_basic off;"


def hold_password(folders: HostFolders, number: int, staged: Staged | None, worker_user: str) -> None:
    """The file is there, for root and the workers alone, or, without `staged`, gone. Blocks."""
    file = password_file(folders, number)
    if staged is None:
        file.unlink(missing_ok=True)
        return
    text = f"{staged.login}:{staged.verifier}\n"
    if file.exists() and file.read_text() == text:
        return
    folders.site_passwords.mkdir(mode=0o711, exist_ok=True)
    new = file.with_suffix(".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640), "w") as opened:
        if os.geteuid() == 0:
            os.fchown(opened.fileno(), 0, pwd.getpwnam(worker_user).pw_gid)
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())
    put_in_place(new, file)
