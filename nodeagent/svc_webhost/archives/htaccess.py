"""Judges the .htaccess files of an archive, so that the plan says what becomes of them before anything is imported.

They are judged as `confined.judge` does with the unpacked files, for a site with the settings of a new one: first as
they are, then with the settings that replace their lines. When the import is applied, they are judged again. If the
verdict is another one then, since the site got another name or an item was left out, the outcome says so.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, Final

from svc_webhost.accepted import is_fallback_page, no_programs_in
from svc_webhost.apache.htaccess import Directive, parse
from svc_webhost.apache.links import SiteLinks, reachable
from svc_webhost.apache.passwords import NoPasswordsError, PasswordFile, read_passwords
from svc_webhost.archives.model import Account, FoundRules, FoundSite, Survey
from svc_webhost.archives.placing import below, link_target, placed_at, target_in_archive
from svc_webhost.htaccess.judging import judge
from svc_webhost.htaccess.situation import Situation
from svc_webhost.htaccess.verdicts import (
    NOT_ALL_READ,
    Denied,
    FallbackPage,
    Fronted,
    HttpsForced,
    NameRedirected,
    PhpSet,
    Protected,
    Redirected,
    Utf8Pages,
    Verdict,
    Wish,
    in_words,
    line_in_words,
)

MOST_NAMED: Final = 20
"""The most lines and settings of a site that the plan names."""
_MOST_SETTINGS: Final = 200
MOST_TEXT: Final = 256 << 10
_MOST_FILES: Final = 500
_MOST_LINES: Final = 10_000
_MOST_PAGES: Final = 100 << 10
"""The most characters in paths of folders with index pages. These four are the limits of `confined.find` and
`confined.judge`."""
_PUBLIC: Final = "public"
_NO_PASSWORDS: Final = "the archive has no such password file"


@dataclass(frozen=True)
class _File:
    path: str
    """From the site's home."""
    directives: Sequence[Directive]
    folder: PurePosixPath | None
    """Below the document root."""
    around: str | None


def judged_rules(
    survey: Survey, account: Account, contents: Mapping[str, bytes], settings: Mapping[str, Any] | None
) -> list[FoundRules]:
    """One for each site with .htaccess files that need anything. `contents` of password files; `settings` that PHP has
    in a new site."""
    return [found for site in account.sites if (found := _of_site(survey, account, site, contents, settings))]


def _of_site(
    survey: Survey, account: Account, site: FoundSite, contents: Mapping[str, bytes], settings: Mapping[str, Any] | None
) -> FoundRules | None:
    links = _links(survey, site)
    files, whole = _files(survey, site, SiteLinks(reachable(links)))
    if not files and whole:
        return None
    wordpress = any(site.wordpress is not None and site.database == each.name for each in account.databases)
    uploads = [path for path in site.uploads if not (wordpress and path == "/wp-content/uploads")]
    situation = Situation(
        folder=None,
        php=True,
        wordpress=wordpress,
        force_https=False,
        denied=frozenset(map(no_programs_in, uploads)),
        domain=site.domain,
        names=dict.fromkeys(site.aliases, False),
        settings=settings,
        indexes=_pages(survey, site) if whole and not links else None,
    )
    passwords = {
        each.path: _passwords(each.problem, each.file, contents)
        for each in account.passwords
        if each.site == site.domain
    }
    wishes = list(dict.fromkeys(wish for _, wishes in _blocking(files, situation, passwords) for wish in wishes))
    left = [text for text, _ in _blocking(files, _with(situation, wishes), passwords)]
    if not whole:
        left.append(NOT_ALL_READ)
    settings_here = [in_words(each, site.domain) for each in wishes[:_MOST_SETTINGS]]
    found = FoundRules(site.domain, settings_here, left[:MOST_NAMED], len(left))
    return found if found.settings or found.blocks else None


def _files(survey: Survey, site: FoundSite, ways: SiteLinks) -> tuple[list[_File], bool]:
    """The files of the site, and whether these are all, each read whole."""
    files: list[_File] = []
    lines, whole = 0, survey.whole
    for path, text in survey.rules.items():
        placed = placed_at(site, path)
        if placed is None:
            continue
        whole = whole and len(text) <= MOST_TEXT and len(files) < _MOST_FILES
        if not whole:
            break
        folder = PurePosixPath(placed).parent
        visited = folder.relative_to(_PUBLIC) if folder.parts[:1] == (_PUBLIC,) else None
        files.append(_File(placed, parse(text.decode(errors="replace")), visited, ways.around(folder)))
        lines += len(files[-1].directives)
        whole = lines <= _MOST_LINES
    return sorted(files, key=lambda file: file.path), whole


def _blocking(
    files: Iterable[_File], situation: Situation, passwords: Mapping[str, PasswordFile | str]
) -> Iterator[tuple[str, tuple[Wish, ...]]]:
    """The lines that block, in words, each with the settings that would replace it."""
    for file in files:
        here = replace(situation, folder=file.folder, around=file.around)
        here = replace(here, passwords=passwords.get(here.path, _NO_PASSWORDS))
        for judged in judge(file.directives, here):
            opinion, directive = judged.opinion, judged.directive
            if opinion.verdict is Verdict.BLOCKS:
                yield line_in_words(file.path, directive.line, directive.text, opinion.reason), opinion.wishes


def _with(situation: Situation, wishes: Iterable[Wish]) -> Situation:
    """The site once it has these settings."""
    redirects = {(each.path, each.below): each for each in situation.redirects}
    denied, protected = set(situation.denied), dict(situation.protected)
    names, settings, force_https = dict(situation.names), dict(situation.settings or {}), situation.force_https
    page, utf8_pages = situation.fallback_page, situation.utf8_pages
    fronts = {each.path: each for each in situation.fronts}
    for wish in wishes:
        match wish:
            case Redirected(path, _, _, below):
                redirects.setdefault((path, below), wish)
            case Denied(pattern):
                denied.add(pattern)
            case Protected(path, logins):
                protected.setdefault(path, frozenset(login for login, _ in logins))
            case Fronted(path):
                fronts.setdefault(path, wish)
            case HttpsForced():
                force_https = True
            case FallbackPage(path):
                page = page or (path if is_fallback_page(path) else None)
            case Utf8Pages():
                utf8_pages = True
            case NameRedirected(name):
                names[name] = True
            case PhpSet(setting, value):
                settings[setting] = value
    return replace(
        situation,
        redirects=tuple(redirects.values()),
        fronts=frozenset(fronts.values()),
        denied=frozenset(denied),
        protected=protected,
        names=names,
        settings=settings,
        force_https=force_https,
        fallback_page=page,
        utf8_pages=utf8_pages,
    )


def _links(survey: Survey, site: FoundSite) -> list[tuple[str, str]]:
    """Links of the site to its folders, each with the folder that it leads to, as they are once imported."""
    found = []
    for path, target in survey.links.items():
        placed, new = placed_at(site, path), link_target(site, path, target)
        old = None if new is None else target_in_archive(site, path, target)
        if placed is not None and new is not None and old is not None and survey.there(old):
            found.append((placed, posixpath.normpath(posixpath.join(posixpath.dirname(placed), new))))
    return found


def _pages(survey: Survey, site: FoundSite) -> dict[PurePosixPath, frozenset[str]] | None:
    pages: dict[PurePosixPath, frozenset[str]] = {}
    told = 0
    for folder, names in survey.pages.items():
        placed = placed_at(site, folder)
        visited = None if placed is None else below(_PUBLIC, placed)
        if placed is None or visited is None:
            continue
        told += len(placed)
        if told > _MOST_PAGES:
            return None
        pages[PurePosixPath(visited or ".")] = frozenset(names)
    return pages


def _passwords(problem: str | None, file: str | None, contents: Mapping[str, bytes]) -> PasswordFile | str:
    if problem is not None or file is None:
        return problem or _NO_PASSWORDS
    try:
        return read_passwords(contents[file])
    except NoPasswordsError as error:
        return str(error)
