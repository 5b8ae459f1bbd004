"""What lies around the document roots of one home: the folder of each site's application, and other folders.

Laravel, Symfony, Craft or Magento have their document root in a folder of the application (`portal/public`), and reach
the rest of it as `../vendor`. So the folder above a document root comes along with the site (`FoundSite.application`),
unless it is the home, whose folders come along one by one, or a part of what another site shows to its visitors.

Invariant: each file is imported with one site at most. A site's *territory* is the folder of its application, or else
its document root; a folder belongs to the innermost territory around it, and to no other site (`FoundSite.without`).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Sequence
from typing import Final

from svc_webhost.archives.model import Account, FoundSite, Kind, Survey
from svc_webhost.archives.placing import MOVED, below, outermost, prefixes

_PUBLIC: Final = frozenset({"public", "web", "pub", "webroot", "htdocs", "httpdocs", "public_html", "www", "docroot"})
"""What frameworks and their guides call the document root of an application."""
_PROGRAMS: Final = (
    *("artisan", "craft", "spark", "please", "yii", "composer.json"),
    *("bin/console", "bin/magento", "bin/cake", "vendor/autoload.php"),
)
"""Files that a framework's application has at its top."""
_KEPT: Final = (
    r"artisan|craft|spark|please|yii|composer\.(?:json|lock)|\.env(?:\.[\w.-]{1,60})?|config\.(?:php|ini|ya?ml)"
)
_KEPT_IN_HOME: Final = re.compile(_KEPT)
"""Files that an application may keep in the home itself. Other files there are those of shells, and old backups."""
MARKED: Final = re.compile(rf"(?:.*/)?(?:{'|'.join(map(re.escape, _PROGRAMS))}|{_KEPT})")
_MOST_LINKS: Final = 8
"""The most links that a path is followed through."""


def surround(survey: Survey, account: Account, of_host: Collection[str] = ()) -> None:
    """Record what comes along with each site, and name what does not. `of_host`: folders of homes that belong to the
    old host's control panel."""
    roots = {site.root for site in account.sites}
    first: dict[str, FoundSite] = {}
    homes: dict[str, list[FoundSite]] = {}
    for site in account.sites:
        homes.setdefault(site.home_in_archive, []).append(site)
        folder = application_of(survey, site, roots)
        if folder is not None and folder not in first:
            first[folder] = site
            take_application(survey, site, folder)
        elif folder is not None:
            reason = f"what lies there besides document roots comes along with {first[folder].domain} alone"
            account.leave(Kind.FILES, f"{folder} for {site.domain}", reason)
    for home, sites in homes.items():
        _around_home(survey, account, home, sites, of_host)
    _keep_apart(account.sites)


def application_of(survey: Survey, site: FoundSite, roots: Collection[str]) -> str | None:
    """The folder of the site's application, if that is above its document root and below the home. `roots`: the
    document roots of all sites."""
    above, _, name = site.root.rpartition("/")
    if not below(site.home_in_archive, site.root) or not below(site.home_in_archive, above):
        return None
    around = [each for each in prefixes(above) if each in roots]
    # If another site shows the folder to its visitors, the folder is taken from that site only if it certainly belongs
    # to an application.
    if around and (above in around or not (name in _PUBLIC or has_application(survey, above))):
        return None
    return above


def take_application(survey: Survey, site: FoundSite, folder: str) -> None:
    """Have all of the folder come along with the site."""
    site.application = folder
    site.renamed = [name for name in survey.below(folder) if name in MOVED and _joined(folder, name) != site.root]


def has_application(survey: Survey, folder: str) -> bool:
    """Whether the folder has files that a framework's application has at its top."""
    return any(_joined(folder, name) in survey.marks for name in _PROGRAMS)


def followed(survey: Survey, home: str, old_home: str, path: str) -> str:
    """The folder to which a document root leads where it, or a folder above it, is a link. A link that leads out of the
    home, or in a circle, is not followed."""
    begun = path
    for _ in range(_MOST_LINKS):
        link = next((each for each in prefixes(path) if each in survey.links and below(home, each)), None)
        if link is None:
            return path
        target, rest = survey.links[link], below(link, path) or ""
        if target.startswith("/"):
            inside = below(old_home.rstrip("/"), posixpath.normpath(target))
            new = None if inside is None else _joined(home, inside)
        else:
            new = posixpath.normpath(posixpath.join(posixpath.dirname(link), target))
        if new is None or new.startswith("..") or below(home, new.rstrip("/")) is None:
            return begun
        path = _joined(new.rstrip("/"), rest)
    return begun


def _around_home(
    survey: Survey, account: Account, home: str, sites: Sequence[FoundSite], of_host: Collection[str]
) -> None:
    """Give the folders of the home itself to the first site whose document root is next to them, or else to the first
    one."""
    site = next((each for each in sites if posixpath.dirname(each.root) == home), sites[0])
    if site.root == home:
        return
    inner: dict[str, set[str]] = {}
    for territory in {_territory(other) for other in account.sites}:
        inner.setdefault((below(home, territory) or "").split("/", 1)[0], set()).add(territory)
    for name in survey.below(home):
        folder, sitting = _joined(home, name), inner.get(name, set())
        if name.startswith(".") or name in of_host or folder in sitting:
            continue
        # A folder that has nothing but sites (`sites/a.example`, `sites/b.example`) is not named.
        others = sum(survey.folders.get(each, (0, 0))[0] for each in outermost(sitting))
        if survey.folders.get(folder, (0, 0))[0] <= others and sitting:
            continue
        if name in site.renamed or _joined(site.application or home, f"private/{name}") in survey.folders:
            account.leave(Kind.FILES, folder, f"{site.domain} has another folder that becomes private/{name}")
        else:
            site.home.append(folder)
    if posixpath.dirname(site.root) == home:
        prefix = f"{home}/" if home else ""
        direct = sorted(path for path in survey.marks if path.startswith(prefix))
        kept = [path for path in direct if _KEPT_IN_HOME.fullmatch(path, len(prefix)) is not None]
        site.home += [path for path in kept if not any(path in sitting for sitting in inner.values())]


def _keep_apart(sites: Sequence[FoundSite]) -> None:
    """Record, for each site, the territories of others within its own folders."""
    having: dict[str, list[FoundSite]] = {}
    for site in sites:
        site.without = []
        for folder in {site.root, site.application, *site.home} - {None}:
            having.setdefault(str(folder), []).append(site)
    for territory in sorted({_territory(site) for site in sites}):
        for folder in prefixes(territory)[:-1]:
            for site in having.get(folder, ()):
                # Two sites may have the same document root: neither takes it from the other.
                if below(territory, site.root) is None and territory not in site.without:
                    site.without.append(territory)


def _territory(site: FoundSite) -> str:
    return site.root if site.application is None else site.application


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}".strip("/")
