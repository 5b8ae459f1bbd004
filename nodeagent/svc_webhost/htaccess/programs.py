"""Lines that keep what was uploaded from being run, or from being shown as a page: PHP that is off, a handler or type
that is removed or replaced.

Apache then sends the file as it is. nginx would run what ends with `.php`, and tells browsers to show `.html` as a
page, so the site denies such names in the folder (`Denied`): less is served than by Apache, and nothing is run.

Rejected: to have nginx send such files as text. Their source would be shown, as with Apache, and nobody misses it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from svc_webhost.accepted import is_denied_pattern
from svc_webhost.apache.htaccess import Directive, narrowing
from svc_webhost.file_types import PAGES, is_page
from svc_webhost.htaccess.denying import SOURCES, denial_of, names_of
from svc_webhost.htaccess.situation import Situation
from svc_webhost.htaccess.verdicts import Opinion, blocks, past, same

_PHP: Final = frozenset({"php"})
_PLAIN_TYPES: Final = re.compile(
    r"text/plain|application/(?:octet-stream|(?:x-|force-)?download)|image/(?!svg)[\w.+-]+"
)
_SENDS: Final = re.compile(r"none|default-handler|drupal_security_\w+|text/\w+|application/octet-stream")
"""Handlers that send a file as it is. A handler that no module knows does so too; Drupal's is the known example."""
_SHOWS_SOURCE: Final = re.compile(r"(?:application|text)/x-(?:httpd-)?php(?:-source)?")


def stopped_endings(directive: Directive) -> frozenset[str] | None:
    """The endings of files that the line keeps from being run or shown as a page, in lower case; None if the line is
    not of this kind."""
    words = [argument.lower() for argument in directive.arguments]
    if not words:
        return None
    first, endings = words[0], frozenset(word.lstrip(".") for word in words[1:])
    media_type = first.partition(";")[0].strip()
    match directive.name:
        case "removehandler":
            return _PHP & {word.lstrip(".") for word in words}
        case "removetype":
            return (_PHP | PAGES) & {word.lstrip(".") for word in words}
        case "sethandler" if _SENDS.fullmatch(first):
            return _PHP
        case "addhandler" if _SENDS.fullmatch(first):
            return _PHP & endings
        case "addhandler" if first == "cgi-script":
            # Without ExecCGI, Apache answers 403 for files with this handler.
            return endings - SOURCES | _PHP & endings
        case "addtype" if "php" not in first or (_SHOWS_SOURCE.fullmatch(first) and not first.endswith("httpd-php")):
            return (_PHP | (frozenset() if is_page(media_type) else PAGES)) & endings
        case "forcetype" if _PLAIN_TYPES.fullmatch(first):
            return _PHP | PAGES
    return None


def stopped(directive: Directive, endings: Collection[str], situation: Situation) -> Opinion | None:
    """The opinion on a line that stops files with these endings in its folder; None if no pattern can express it."""
    if situation.around is not None:
        return past(situation.around)
    if not situation.parts:
        return blocks("nginx runs as PHP what ends with .php, and shows the source of nothing; it does so here too.")
    if not situation.php:
        endings = [ending for ending in endings if ending not in _PHP]
    patterns = _patterns(directive, endings, situation)
    if patterns is None or not all(map(is_denied_pattern, patterns)):
        return None
    if not patterns:
        return same("nginx runs none of these files.")
    return denial_of(patterns, situation)


def _patterns(directive: Directive, endings: Collection[str], situation: Situation) -> list[str] | None:
    base = "/".join(("", *situation.parts))
    every = [f"{base}/**/*.{ending}" for ending in sorted(endings)]
    sections = [section for section in directive.sections if section.name in narrowing(directive)]
    if not sections or (
        len(sections) == 1 and sections[0].name == "files" and sections[0].argument.strip("\"'") == "*"
    ):
        return every
    names = names_of(sections[0]) if len(sections) == 1 else None
    if names is None or any(name.endswith("*") for name in names):
        return None
    ends = tuple(f".{ending}" for ending in endings)
    return [f"{base}/**/{name}" for name in names if name.endswith(ends) or name.lstrip("*") in endings]
