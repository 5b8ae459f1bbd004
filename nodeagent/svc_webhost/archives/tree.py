"""An archive of a site's files, with dumps of its databases among them or not: the kind that people pack by hand.

The document root is the outermost folder with an index page. The domain must be given for the import, unless the parent
folder's name looks like one.
"""

from __future__ import annotations

import posixpath
import re
from typing import Final

from svc_webhost.archives.applications import describe
from svc_webhost.archives.model import Account, Format, FoundDatabase, FoundSite, Kind, Survey, domain_of
from svc_webhost.archives.surroundings import has_application, take_application

MARKED: Final = re.compile(r"(?:[^/]+/){0,4}index\.(?:php|html?)|(?:[^/]+/){0,3}[^/]+\.sql(?:\.gz|\.bz2|\.xz|\.zst)?")
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
    describe(survey, site)
    account.sites.append(site)
    for path in sorted(survey.marks):
        found = _DUMP.fullmatch(path)
        if found is not None and not path.startswith(f"{root}/wp-"):
            account.databases.append(FoundDatabase(found[1], "mariadb", path, named))
    if site.database is not None and len(account.databases) == 1:
        account.databases[0].name = site.database
    return account


def _depth(folder: str) -> int:
    return folder.count("/") + 1 if folder else 0


def _rank(folder: str) -> int:
    name = folder.rpartition("/")[2]
    return _USUAL.index(name) if name in _USUAL else len(_USUAL)
