"""An archive of a site's files as people pack it by hand, with or without dumps of the site's databases.

The document root is the outermost folder with an index page. The domain must be given for the import, unless the parent
folder's name looks like one.
"""

from __future__ import annotations

import posixpath
import re
from typing import Final

from svc_webhost.archives.applications import describe
from svc_webhost.archives.model import Account, Format, FoundDatabase, FoundSite, Kind, Survey, domain_of
from svc_webhost.archives.placing import below, outermost, placed_at, prefixes
from svc_webhost.archives.surroundings import has_application, take_application

_RECORDS: Final = re.compile(
    r"(?:[^/]+/){0,4}(?:(?P<zone>[^/]+\.(?:db|zone))|(?P<tasks>crontab(?:\.(?:conf|txt))?|cron\.conf|cron/[^/]+)"
    r"|(?:user|domain)\.conf)"
)
MARKED: Final = re.compile(
    r"(?:[^/]+/){0,4}index\.(?:php|html?)|(?:[^/]+/){0,3}[^/]+\.sql(?:\.gz|\.bz2|\.xz|\.zst)?"
    r"|(?:[^/]+/){0,4}(?:[^/]+\.(?:db|zone)|crontab(?:\.(?:conf|txt))?|cron\.conf|cron/[^/]+|(?:user|domain)\.conf)"
)
NO_DOMAIN: Final = "site.invalid"
"""A placeholder for an unknown domain; no site may have this name."""
_DUMP: Final = re.compile(r"(?:.*/)?([^/]+)\.sql(?:\.gz|\.bz2|\.xz|\.zst)?")
_USUAL: Final = ("public_html", "httpdocs", "htdocs", "www", "public", "web", "html")


def read(survey: Survey) -> Account:
    account = Account(Format.TREE)
    indexes = [path for path in survey.marks if re.search(r"(?:^|/)index\.(?:php|html?)$", path)]
    folders = sorted(
        {path.rpartition("/")[0] for path in indexes}, key=lambda folder: (_depth(folder), _rank(folder), folder)
    )
    if not folders:
        account.leave(Kind.SITE, "files", "no folder of the archive has an index page, so no document root was found")
        return account
    root = folders[0]
    named = next((name for part in reversed(root.split("/")) if (name := domain_of(part)) is not None), NO_DOMAIN)
    site = FoundSite(named, root)
    above = posixpath.dirname(root)
    if root and has_application(survey, above):
        take_application(survey, site, above)
    _leave_others(survey, account, site, folders[1:])
    describe(survey, site)
    account.sites.append(site)
    for path in sorted(survey.marks):
        found = _DUMP.fullmatch(path)
        if found is not None and not path.startswith(f"{root}/wp-"):
            account.databases.append(FoundDatabase(found[1], "mariadb", path, named))
    if site.database is not None and len(account.databases) == 1:
        account.databases[0].name = site.database
    return account


def _leave_others(survey: Survey, account: Account, site: FoundSite, indexes: list[str]) -> None:
    """Name what lies around the one site that is read, above all what looks like another site, a zone or a crontab."""
    others = [folder for folder in indexes if placed_at(site, folder) is None]
    for folder in outermost(others):
        reason = f"it has an index page: of an archive packed by hand, only the site in {site.root or '/'} is read"
        account.leave(Kind.SITE, folder or "/", reason)
    for path in sorted(survey.marks):
        found = _RECORDS.fullmatch(path)
        if found is not None and placed_at(site, path) is None:
            kind = Kind.DNS if found["zone"] else Kind.TASK if found["tasks"] else Kind.OTHER
            account.leave(kind, path, "it is read in backups of known panels only: enter what it says yourself")
    for above in ["", *prefixes(site.root)[:-1]] if site.root else []:
        for name in survey.below(above):
            folder = f"{above}/{name}".lstrip("/")
            around = below(folder, site.root) is not None or placed_at(site, folder) is not None
            if not around and not any(below(folder, other) is not None for other in others):
                files, size = survey.folders.get(folder, (0, 0))
                reason = f"{files:,} files, {size:,} bytes: it lies next to the site, and is no part of it"
                account.leave(Kind.FILES, folder, reason)


def _depth(folder: str) -> int:
    return folder.count("/") + 1 if folder else 0


def _rank(folder: str) -> int:
    name = folder.rpartition("/")[2]
    return _USUAL.index(name) if name in _USUAL else len(_USUAL)
