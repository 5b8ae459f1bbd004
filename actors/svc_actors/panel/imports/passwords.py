"""Password files that are imported with a site, for its protected paths.

A password file among the site's own files stays there, readable only for the site: the web server cannot read it,
whatever its name. A password file elsewhere in the archive (cPanel's .htpasswds) is staged in the folder of the dumps,
and removed with them.
"""

from __future__ import annotations

from typing import Final

from svc_actors.panel.htaccess.reading import PasswordsAt
from svc_actors.panel.imports.applied import Applied
from svc_webhost.archives.model import FoundSite
from svc_webhost.archives.placing import ASIDE, placed_at

_LEFT_OUT: Final = "its passwords were left out of the import"


def site_password_files(applied: Applied, source: FoundSite) -> dict[str, str]:
    """Password files among the site's own files, as a map from the path in the archive to the place in the site.
    Includes files that protected paths of other sites use."""
    files = {each.file for each in applied.account.passwords if each.file is not None}
    return {file: placed for file in files if (placed := placed_at(source, file)) is not None}


def outside_password_files(applied: Applied, source: FoundSite) -> dict[str, str]:
    """A map as `kept_passwords`, for the needed files that lie elsewhere in the archive."""
    kept = site_password_files(applied, source)
    needed = {
        each.file: number
        for number, (each, wanted) in enumerate(applied.passwords(source))
        if each.file is not None and each.file not in kept and wanted and each.problem is None
    }
    return {file: f"{ASIDE}/{number}.htpasswd" for file, number in needed.items()}


def imported_password_files(applied: Applied, source: FoundSite) -> dict[str, PasswordsAt | str]:
    """For each protected path on the old host: where in the site its password file is, or why there is none."""
    places = outside_password_files(applied, source) | site_password_files(applied, source)
    brought: dict[str, PasswordsAt | str] = {}
    for each, wanted in applied.passwords(source):
        if each.problem is not None or each.file is None or not wanted:
            brought[each.path] = each.problem or _LEFT_OUT
        else:
            brought[each.path] = PasswordsAt(places[each.file], each.named)
    return brought
