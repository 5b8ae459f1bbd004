"""Lines of a site's .htaccess files with directives that nginx does not carry out."""

from __future__ import annotations

from collections.abc import Mapping

from svc_actors.panel.htaccess.reading import PasswordsAt, judged_files
from svc_actors.panel.sites.records import SiteRow
from svc_actors.store import Queryable
from svc_webhost.confined_client import ConfinedFiles
from svc_webhost.folders import HostFolders


async def blocking_lines(
    files: ConfinedFiles,
    folders: HostFolders,
    queryable: Queryable,
    site: SiteRow,
    passwords: Mapping[str, PasswordsAt | str] | None = None,
    root: str = "",
) -> list[str]:
    """The lines, each with its place and the reason. `passwords` and `root` as in `judged_files`."""
    judged = await judged_files(files, folders, queryable, site, passwords, root)
    blocking = [f"{path}:{one.line}: {one.text} ({one.reason})"[:300] for path, one in judged.blocking]
    if not judged.complete:
        blocking.append("not all of the .htaccess files could be read")
    return blocking
