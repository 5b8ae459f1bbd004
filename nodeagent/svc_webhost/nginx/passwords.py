"""Password files for nginx, readable for root and nginx's workers alone.

passwords/s1001               of a staging copy
passwords/s1001-3f786850e387  of a path that its owner protects
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from svc_common.durable import put_in_place
from svc_webhost.folders import HostFolders
from svc_webhost.nginx.model import Login, SiteServer


def password_file(folders: HostFolders, number: int, path: str | None = None) -> Path:
    """Of the whole copy, or of a path."""
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
