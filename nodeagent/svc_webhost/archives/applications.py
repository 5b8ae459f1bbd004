"""Recognises applications by their files. The configurations of WordPress, Joomla, MediaWiki and Laravel are rewritten
for another database; those of others are only named.

A configuration is only text here: values are found by their form, and everything else stays byte for byte.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from svc_webhost.archives.model import FoundSite, Survey
from svc_webhost.archives.placing import below, outermost

CONFIGURATIONS: Final = re.compile(
    r"(?:.*/)?(?:wp-config\.php|configuration\.php|\.env|sites/default/settings\.php|app/etc/env\.php"
    r"|app/config/parameters\.php|config/settings\.inc\.php|LocalSettings\.php|typo3conf/LocalConfiguration\.php"
    r"|bootstrap/cache/config\.php)"
)
WANTED: Final = re.compile(r"(?:.*/)?(?:wp-config\.php|configuration\.php|\.env|LocalSettings\.php)")
"""Those whose text is read."""
_NAMES: Final = {
    "configuration.php": "Joomla",
    ".env": "Laravel, Symfony or another that reads .env",
    "sites/default/settings.php": "Drupal",
    "app/etc/env.php": "Magento",
    "app/config/parameters.php": "PrestaShop",
    "config/settings.inc.php": "PrestaShop",
    "LocalSettings.php": "MediaWiki",
    "typo3conf/LocalConfiguration.php": "TYPO3",
    "bootstrap/cache/config.php": "what Laravel reads instead of .env, until php artisan config:clear",
}

_QUOTED: Final = re.compile(rb"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)
_BARE: Final = re.compile(rb"""[^'";)]*""")
_LONGEST_BARE: Final = 200
_CALL_ENDS: Final = re.compile(rb"\s*\)\s*;")
_ASSIGNMENT_ENDS: Final = re.compile(rb"\s*;")
DATABASE: Final = ("DB_NAME", "DB_USER", "DB_PASSWORD", "DB_HOST")
"""What a configuration says of its database, as WordPress calls it."""
_VARIABLES: Final[Mapping[str, Sequence[str]]] = {
    "wp-config.php": DATABASE,
    "configuration.php": ("db", "user", "password", "host"),
    "LocalSettings.php": ("wgDBname", "wgDBuser", "wgDBpassword", "wgDBserver"),
    ".env": ("DB_DATABASE", "DB_USERNAME", "DB_PASSWORD", "DB_HOST"),
}
"""The names of these in each configuration that can be rewritten."""
_URL: Final = re.compile(rb"^[ \t]*(?:export[ \t]+)?(?:DB_URL|DATABASE_URL)[ \t]*=[ \t]*[^\s#]", re.MULTILINE)
_ENGINE: Final = re.compile(rb"^[ \t]*DB_CONNECTION[ \t]*=[ \t]*[\"']?(?!mysql|mariadb)", re.MULTILINE)


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
                if name in _VARIABLES and path in survey.texts and site.database is None:
                    site.database = database_of(survey.texts[path], name)
                    site.configuration = None if site.database is None else path


def database_of(text: bytes, file: str = "wp-config.php") -> str | None:
    """The name of the database, if it is a plain string there; `file` is the name of the configuration."""
    if file == ".env" and (_URL.search(text) is not None or _ENGINE.search(text) is not None):
        return None
    found = next(_values(text, file, _VARIABLES[file][0]), None)
    value = b"" if found is None else text[slice(*found)].strip()
    if value[:1] in (b"'", b'"') and value[-1:] == value[:1]:
        value = value[1:-1]
    elif file != ".env":
        return None
    return value.decode(errors="replace") or None


def rewritten(text: bytes, values: Mapping[str, str], paths: Mapping[str, str], file: str = "wp-config.php") -> bytes:
    """The text with these values, which are named as in `DATABASE`, and these folders replaced. Raises ValueError if
    one of the values is missing."""
    for name, value in values.items():
        variable = _VARIABLES[file][DATABASE.index(name)]
        places = list(_values(text, file, variable))
        if not places:
            usual = "WordPress does" if file == "wp-config.php" else "usual"
            raise ValueError(f"it does not define {variable} as {usual}")
        text = _replaced(text, places, quoted(value) if file != ".env" else value.encode())
    for old, new in sorted(paths.items(), key=lambda pair: -len(pair[0])):
        place = re.compile(re.escape(old.rstrip("/").encode()) + rb"(?=[/'\"\n])")
        text = _replaced(text, [found.span() for found in place.finditer(text)], new.encode())
    return text


def _replaced(text: bytes, places: Iterable[tuple[int, int]], value: bytes) -> bytes:
    parts, kept = list[bytes](), 0
    for begin, end in places:
        parts += (text[kept:begin], value)
        kept = end
    return b"".join((*parts, text[kept:]))


def _values(text: bytes, file: str, name: str) -> Iterator[tuple[int, int]]:
    """Positions of the values in definitions of a constant or variable. Each definition is scanned once, up to the end
    of its value: a regular expression in which a space could belong to several parts took minutes for a text of some
    kilobytes."""
    variable = name.encode()
    if file == ".env":
        line = re.compile(rb"^[ \t]*(?:export[ \t]+)?" + variable + rb"[ \t]*=([^\r\n]*)", re.MULTILINE)
        yield from (found.span(1) for found in line.finditer(text))
        return
    called = file == "wp-config.php"
    if called:
        begins = re.compile(rb"""define\s*\(\s*['"]""" + variable + rb"""['"]\s*,\s*""")
    else:
        begins = re.compile(rb"\$" + variable + rb"\s*=\s*")
    at = 0
    while (found := begins.search(text, at)) is not None:
        begin = at = found.end()
        value = _QUOTED.match(text, begin)
        if value is not None:
            end = value.end()
        else:
            bare = _BARE.match(text, begin)
            end = begin if bare is None else min(bare.end(), begin + _LONGEST_BARE)
        ended = _CALL_ENDS.match(text, end) if called else _ASSIGNMENT_ENDS.match(text, end)
        if ended is not None:
            yield begin, end
            at = ended.end()


def quoted(text: str) -> bytes:
    """As a PHP string in single quotes, in which only quote and backslash are special."""
    return b"'" + text.replace("\\", "\\\\").replace("'", "\\'").encode() + b"'"
