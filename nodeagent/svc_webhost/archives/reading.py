"""Detects the format of an archive by its content, and reads it."""

from __future__ import annotations

import re
from typing import Final

from svc_webhost.archives import (
    cpmove,
    directadmin,
    extensions,
    fetched,
    hestia,
    passwords,
    plesk,
    surroundings,
    tree,
    uploads,
    virtualmin,
)
from svc_webhost.archives.applications import CONFIGURATIONS, WANTED
from svc_webhost.archives.model import Account, Kind, Reader, Survey

_READERS: Final[tuple[Reader, ...]] = (
    fetched.read,
    cpmove.read,
    directadmin.read,
    hestia.read,
    virtualmin.read,
    plesk.read,
)
_WANTED: Final = (
    *(extensions.WANTED, fetched.WANTED, cpmove.WANTED, hestia.WANTED, virtualmin.WANTED, plesk.WANTED),
    passwords.WANTED,
    directadmin.WANTED,
    WANTED,
)
_MARKED: Final = (
    fetched.MARKED,
    cpmove.MARKED,
    directadmin.MARKED,
    hestia.MARKED,
    virtualmin.MARKED,
    plesk.MARKED,
    tree.MARKED,
    surroundings.MARKED,
    uploads.MARKED,
    CONFIGURATIONS,
)
_MOST: Final = 200
_WORDPRESS_FILE: Final = re.compile(r"(?:.*/)?wp-load\.php")


def needs_content(path: str) -> bool:
    """Whether a format reads the file's content."""
    return any(pattern.fullmatch(path) for pattern in _WANTED)


def marked(path: str) -> bool:
    """Whether the presence of the file matters."""
    return any(pattern.fullmatch(path) for pattern in _MARKED) or _WORDPRESS_FILE.fullmatch(path) is not None


def read(survey: Survey) -> Account:
    read_by = (reader(survey) for reader in _READERS)
    account = _bounded(next((account for account in read_by if account is not None), None) or tree.read(survey))
    products = uploads.product_files(survey)
    for site in account.sites:
        site.extensions = extensions.extensions_of(survey, site)
        site.uploads = uploads.uploads_of(site, products)
    return account


def _bounded(account: Account) -> Account:
    """The survey's items up to what a customer's account can have; items beyond that are left out, and a note says
    so."""
    for kind, found in ((Kind.SITE, account.sites), (Kind.DATABASE, account.databases), (Kind.DNS, account.zones)):
        if len(found) > _MOST:
            account.leave(kind, f"{len(found) - _MOST} more", f"at most {_MOST} are imported at once")
            del found[_MOST:]
    del account.tasks[_MOST:], account.certificates[_MOST:]
    for site in account.sites:
        if len(site.home) > _MOST:
            account.leave(Kind.FILES, site.domain, f"of the folders of its home {_MOST} are imported")
            del site.home[_MOST:]
        del site.aliases[_MOST:], site.applications[_MOST:]
    return account


_NESTED: Final = re.compile(r"(?:[^/]+/)?homedir\.tar|web/[^/]+/domain_data\.tar\.(?:gz|zst)")
_OF_PLESK: Final = ("user-data", "docroot", "sqldump")
_PACKED: Final = (".tar", ".tar.gz", ".tar.zst")


def nested(path: str) -> bool:
    """Whether this is an archive within the archive that is to be read as a folder: a part of the format, and not one
    of a site's files."""
    folder, _, name = path.rpartition("/")
    if any(mark in name for mark in _OF_PLESK) and name.endswith((*_PACKED, ".tgz", ".tzst")):
        return True
    if directadmin.HOME.fullmatch(path) is not None:
        return True
    stem = next((name.removesuffix(end) for end in (*_PACKED[::-1], ".tar.bz2") if name.endswith(end)), "")
    return (not folder and "." in stem[1:-1]) or _NESTED.fullmatch(path) is not None
