"""Finds folders whose .htaccess files ask for a password, and the password files in the archive. Pure functions.

A path on the other host maps to an entry of the archive if it lies below a home that the archive has; no file is ever
opened by it. Apache resolves a path without a leading slash below its server root, so such files are not imported.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Final

from svc_webhost.apache.asking import PasswordAsked, password_asked
from svc_webhost.apache.htaccess import Directive, Lines, parse
from svc_webhost.apache.links import SiteLinks, reachable
from svc_webhost.apache.passwords import NoPasswordsError, read_passwords
from svc_webhost.archives.model import Account, FoundPasswords, FoundSite, Kind, Survey
from svc_webhost.archives.placing import below, link_target, placed_at

WANTED: Final = re.compile(r"(?:.*/)?\.htaccess")
_MOST: Final = 200
_MOST_NAMED: Final = 200
"""The most characters of a path in a message."""
_PUBLIC: Final = "public"


def names_no_password_file(path: str, content: bytes | bytearray) -> bool:
    """Whether this .htaccess file names no password file; an archive may have thousands of such files."""
    return WANTED.fullmatch(path) is not None and b"authuserfile" not in content.lower()


@dataclass(frozen=True)
class PasswordCandidate:
    """`named`: the password file's path on the other host; `files`: entries of the archive that it may be, the
    likeliest first. `problem`: why nothing of it can be taken over."""

    site: str
    path: str
    named: str
    files: tuple[str, ...]
    asked: PasswordAsked | None
    problem: str | None

    def resolve(self, contents: Mapping[str, bytes]) -> FoundPasswords:
        """The passwords, once the contents of those `files` are known that are in the archive."""
        file = next((file for file in self.files if file in contents), None)
        found = FoundPasswords(self.site, self.path, self.named, file, problem=self.problem)
        if found.problem is not None or self.asked is None:
            return found
        if file is None:
            found.problem = f"{self.named} is not in the archive"
            return found
        try:
            taken = read_passwords(contents[file]).of(self.asked.users)
        except NoPasswordsError as error:
            found.problem = f"no login of {self.named} can be imported: {error}"
        else:
            found.logins, found.left = len(taken.verifiers), list(taken.left)
        return found


def password_candidates(
    survey: Survey, account: Account, links: Sequence[tuple[str, str]] = ()
) -> list[PasswordCandidate]:
    """`links` of the archive, each with its target."""
    ways = {site.domain: _ways(survey, site, links) for site in account.sites}
    found: list[PasswordCandidate] = []
    for text in survey.matching(WANTED):
        placed = [(site, place) for site in account.sites if (place := placed_at(site, text[0])) is not None]
        visited = [(site, place) for site, place in placed if place.partition("/")[0] == _PUBLIC]
        directives = parse(survey.text(text[0])) if visited else []
        asking = next((each for each in directives if each.name == "authuserfile"), None)
        if asking is None:
            continue
        lines = Lines(directives)
        for site, place in visited:
            path = posixpath.dirname(place).removeprefix(_PUBLIC) or "/"
            if len(found) == _MOST:
                reason = f"at most {_MOST} such paths are imported at once"
                account.leave(Kind.PROTECTED_PATH, f"{site.domain}{path}", reason)
                continue
            each = _sought(account, site, path, asking, lines)
            around = ways[site.domain].around(PurePosixPath(posixpath.dirname(place)))
            if each.problem is None and around is not None:
                each = replace(each, problem=f"the link {around} leads there without asking for the password")
            found.append(each)
    return found


def _ways(survey: Survey, site: FoundSite, links: Sequence[tuple[str, str]]) -> SiteLinks:
    """Links of the site to its folders that visitors can follow, with their paths in the imported site."""
    found = []
    for path, target in links:
        placed, new = placed_at(site, path), link_target(site, path, target)
        if placed is None or new is None:
            continue
        leads = posixpath.normpath(posixpath.join(posixpath.dirname(placed), new))
        visited = below(_PUBLIC, leads)
        if visited is not None and survey.there(f"{site.root}/{visited}".strip("/")):
            found.append((placed, leads))
    return SiteLinks(reachable(found))


def _sought(account: Account, site: FoundSite, path: str, asking: Directive, lines: Lines) -> PasswordCandidate:
    named, asked, problem = " ".join(asking.arguments), None, None
    try:
        asked = password_asked(asking.sections, lines)
        named = asked.file
    except NoPasswordsError as error:
        problem = str(error)
    shown = named[:_MOST_NAMED]
    homes = [other for other in (site, *account.sites) if other.old_home is not None]
    files = _entries(homes, named)
    if problem is None and not named.startswith("/"):
        problem = f"{shown} is not an absolute path, and is in a folder of the old web server's own"
    elif problem is None and not homes:
        problem = f"the archive does not say where its files were on the old host, so {shown} cannot be found in it"
    elif problem is None and not files:
        problem = f"{shown} is outside of the account's home"
    return PasswordCandidate(site.domain, path, shown, files, asked, problem)


def _entries(homes: Sequence[FoundSite], named: str) -> tuple[str, ...]:
    """Entries of the archive for a path below these homes."""
    if not named.startswith("/"):
        return ()
    # `..` is resolved as if no folder of the path were a link.
    path = posixpath.normpath(f"/{named.lstrip('/')}")
    rests = [(other, below((other.old_home or "").rstrip("/"), path)) for other in homes]
    found = (f"{other.home_in_archive}/{rest.lstrip('/')}".lstrip("/") for other, rest in rests if rest)
    return tuple(dict.fromkeys(found))
