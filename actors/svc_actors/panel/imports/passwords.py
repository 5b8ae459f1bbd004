"""Files of passwords that come along with a site, for paths of it that ask for one.

One that lies among the site's own files stays there, for the site alone: the web server cannot read it, whatever it is
called. One that lies elsewhere in the archive (cPanel's .htpasswds) lies aside as dumps do, and goes with them.
"""

from __future__ import annotations

from typing import Final

from svc_actors.errors import ErrorCode, ServiceError
from svc_actors.host.apache.passwords import MOST_BYTES, NoPasswordsError, PasswordFile, read_passwords
from svc_actors.host.archives.model import FoundSite
from svc_actors.host.archives.placing import placed_at
from svc_actors.host.confined.protocol import Read
from svc_actors.panel.files import site_folder
from svc_actors.panel.imports.applied import Applied, Parts
from svc_actors.panel.imports.belongings import ASIDE
from svc_actors.panel.sites.records import SiteRow

_LEFT_OUT: Final = "its passwords were left out of the import"


def kept_passwords(applied: Applied, found: FoundSite) -> dict[str, str]:
    """Those among the site's own files, by their paths in the archive: where they lie in the site. Also what paths of
    other sites ask for."""
    files = {each.file for each in applied.account.passwords if each.file is not None}
    return {file: placed for file in files if (placed := placed_at(found, file)) is not None}


def aside_passwords(applied: Applied, found: FoundSite) -> dict[str, str]:
    """The same of those that lie elsewhere and are needed."""
    kept = kept_passwords(applied, found)
    needed = {
        each.file: number
        for number, (each, wanted) in enumerate(applied.passwords(found))
        if each.file is not None and each.file not in kept and wanted and each.problem is None
    }
    return {file: f"{ASIDE}/{number}.htpasswd" for file, number in needed.items()}


async def brought_passwords(
    parts: Parts, applied: Applied, found: FoundSite, site: SiteRow
) -> dict[str, PasswordFile | str]:
    """Of each path that asked for one on the old host: those that came along, or why none can be had."""
    places = aside_passwords(applied, found) | kept_passwords(applied, found)
    folder = site_folder(parts.folders, site)
    brought: dict[str, PasswordFile | str] = {}
    for each, wanted in applied.passwords(found):
        if each.problem is not None or each.file is None or not wanted:
            brought[each.path] = each.problem or _LEFT_OUT
            continue
        try:
            content = (await parts.files.ask(folder, Read(places[each.file], 0, MOST_BYTES + 1))).payload
            brought[each.path] = read_passwords(content)
        except NoPasswordsError as error:
            brought[each.path] = f"of {each.named} nothing can be taken over: {error}"
        except ServiceError as error:
            if error.code is not ErrorCode.NOT_FOUND:
                raise
            brought[each.path] = f"{each.named} did not come along"
    return brought
