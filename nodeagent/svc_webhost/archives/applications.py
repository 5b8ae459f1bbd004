"""Recognises applications by their files: WordPress, whose configuration is rewritten, and others, which are only
named."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from svc_webhost.archives.model import FoundSite, Survey
from svc_webhost.archives.placing import below, outermost

CONFIGURATIONS: Final = re.compile(
    r"(?:.*/)?(?:wp-config\.php|configuration\.php|\.env|sites/default/settings\.php|app/etc/env\.php"
    r"|app/config/parameters\.php|config/settings\.inc\.php|LocalSettings\.php|typo3conf/LocalConfiguration\.php)"
)
_NAMES: Final = {
    "configuration.php": "Joomla",
    ".env": "Laravel, Symfony or another that reads .env",
    "sites/default/settings.php": "Drupal",
    "app/etc/env.php": "Magento",
    "app/config/parameters.php": "PrestaShop",
    "config/settings.inc.php": "PrestaShop",
    "LocalSettings.php": "MediaWiki",
    "typo3conf/LocalConfiguration.php": "TYPO3",
}

_QUOTED: Final = re.compile(rb"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)
_BARE: Final = re.compile(rb"""[^'";)]*""")
_LONGEST_BARE: Final = 200
_ENDS: Final = re.compile(rb"\s*\)\s*;")
DATABASE: Final = ("DB_NAME", "DB_USER", "DB_PASSWORD", "DB_HOST")


def describe(survey: Survey, site: FoundSite) -> None:
    """Record the applications found in the site's files."""
    files, size = survey.folders.get(site.root, (0, 0))
    if site.application is not None:
        files, size = survey.folders.get(site.application, (0, 0))
    for other in outermost(site.without):
        if below(site.root if site.application is None else site.application, other) is not None:
            inner = survey.folders.get(other, (0, 0))
            files, size = files - inner[0], size - inner[1]
    site.files, site.size = files, size
    above = posixpath.dirname(site.root)
    around = [site.root, *site.home, *([] if site.application is None else [site.application])]
    for path in (f"{site.root}/wp-config.php", f"{above}/wp-config.php".lstrip("/")):
        if path in survey.texts and f"{site.root}/wp-load.php" in survey.marks:
            site.wordpress, site.database = path, database_of(survey.texts[path])
            break
    for name, program in _NAMES.items():
        for folder in dict.fromkeys([*around, *([above] if name == ".env" else [])]):
            if (path := f"{folder}/{name}".lstrip("/")) in survey.marks:
                site.applications.append(f"{path} ({program})")


# A wp-config.php is only text here: constants are found by their form, and everything else stays byte for byte when it
# is rewritten for another database.
def database_of(text: bytes) -> str | None:
    """The name of the database, if it is a plain string there."""
    found = next(_values(text, "DB_NAME"), None)
    if found is None:
        return None
    value = text[slice(*found)].strip()
    if len(value) < 3 or value[:1] not in (b"'", b'"') or value[-1:] != value[:1]:
        return None
    return value[1:-1].decode(errors="replace")


def rewritten(text: bytes, values: Mapping[str, str], paths: Mapping[str, str]) -> bytes:
    """The text with these constants and folders replaced. Raises ValueError if one of the constants is missing."""
    for name, value in values.items():
        places = list(_values(text, name))
        if not places:
            raise ValueError(f"it does not define {name} as WordPress does")
        text = _replaced(text, places, quoted(value))
    for old, new in sorted(paths.items(), key=lambda pair: -len(pair[0])):
        place = re.compile(re.escape(old.rstrip("/").encode()) + rb"(?=[/'\"])")
        text = _replaced(text, [found.span() for found in place.finditer(text)], new.encode())
    return text


def _replaced(text: bytes, places: Iterable[tuple[int, int]], value: bytes) -> bytes:
    parts, kept = list[bytes](), 0
    for begin, end in places:
        parts += (text[kept:begin], value)
        kept = end
    return b"".join((*parts, text[kept:]))


def _values(text: bytes, name: str) -> Iterator[tuple[int, int]]:
    """Positions of the values in definitions of a constant. Each definition is scanned once, up to the end of its
    value: a regular expression in which a space could belong to several parts took minutes for a text of some
    kilobytes."""
    at = 0
    begins = re.compile(rb"""define\s*\(\s*['"]""" + name.encode() + rb"""['"]\s*,\s*""")
    while (found := begins.search(text, at)) is not None:
        begin = at = found.end()
        value = _QUOTED.match(text, begin)
        if value is not None:
            end = value.end()
        else:
            bare = _BARE.match(text, begin)
            end = begin if bare is None else min(bare.end(), begin + _LONGEST_BARE)
        ends = _ENDS.match(text, end)
        if ends is not None:
            yield begin, end
            at = ends.end()


def quoted(text: str) -> bytes:
    """As a PHP string in single quotes, in which only quote and backslash are special."""
    return b"'" + text.replace("\\", "\\\\").replace("'", "\\'").encode() + b"'"
