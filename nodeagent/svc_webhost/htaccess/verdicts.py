"""The verdicts on a directive, and what an import could set in the panel instead of it.

Wishes are typed features of the panel, with their own checks. Free rules of nginx were rejected: see the package.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final


class Verdict(StrEnum):
    """TRANSLATED: the site has the same as a setting of the panel. SAME: nginx does so by itself. HARMLESS: without it
    visitors get the same pages. BLOCKS: without it they get other pages, or pages that they must not see; directives
    that are not known block too."""

    # TRANSLATED and SAME are distinguished, because a TRANSLATED line becomes BLOCKS again when the owner removes the
    # setting.
    TRANSLATED = "translated"
    SAME = "same"
    HARMLESS = "harmless"
    BLOCKS = "blocks"


@dataclass(frozen=True)
class Redirected:
    """A redirect, as the site has it or needs it."""

    path: str
    target: str
    status: int
    below: bool


@dataclass(frozen=True)
class HttpsForced:
    """HTTP is redirected to HTTPS."""


@dataclass(frozen=True)
class NameRedirected:
    """This name of the site is redirected to its primary name."""

    name: str


@dataclass(frozen=True)
class Denied:
    """A denied path, as the site has it or needs it."""

    pattern: str


@dataclass(frozen=True)
class Protected:
    """A protected path that the site needs. `logins`: each name with its password verifier."""

    path: str
    logins: tuple[tuple[str, str], ...] = field(repr=False)


@dataclass(frozen=True)
class PhpSet:
    """A setting of the site's PHP, by its name in `PhpSettings`."""

    setting: str
    value: int | bool | str


@dataclass(frozen=True)
class FallbackPage:
    """The page that answers for paths without a file."""

    path: str


@dataclass(frozen=True)
class Utf8Pages:
    """Files of HTML are sent as UTF-8."""


@dataclass(frozen=True)
class Fronted:
    """A front controller, as the site has it or needs it: fields as in `nginx.FrontController`."""

    path: str
    php_file: str
    path_info: bool
    parameter: str | None
    serves_files: bool


Wish = FallbackPage | Utf8Pages | Redirected | Denied | Protected | HttpsForced | NameRedirected | PhpSet | Fronted


def in_words(wish: Wish, domain: str) -> str:
    """What a site called `domain` gets by the wish, without secrets."""
    match wish:
        case Redirected(path, target, _, below):
            return f"a redirect of {path}{' and all below it' if below else ''} to {target}"
        case Denied(pattern):
            return f"visitors are refused {pattern}"
        case Protected(path, logins):
            return f"{path} asks for a password; logins brought: {len(logins)}"
        case HttpsForced():
            return "visitors are sent to HTTPS"
        case Fronted(path, php_file):
            return f"{php_file} answers for paths without a file in {path}"
        case FallbackPage(path):
            return f"{path} answers for paths without a file"
        case Utf8Pages():
            return "pages are sent as UTF-8"
        case NameRedirected(name):
            return f"visitors of {name} are sent to {domain}"
        case PhpSet(setting, value):
            return f"PHP has {setting} {value}"


def line_in_words(path: str, line: int, text: str, reason: str) -> str:
    """A line that blocks, with its place and the reason; `path` from the site's home."""
    return f"{path}:{line}: {text} ({reason})"[:300]


NOT_ALL_READ: Final = "not all of the .htaccess files could be read"


@dataclass(frozen=True)
class Opinion:
    """`reason`: the facts, and what to do if there is something to do. `wishes`: what the site needs for a line that
    blocks to become TRANSLATED; empty if that is impossible."""

    verdict: Verdict
    reason: str
    wishes: tuple[Wish, ...] = ()


def same(reason: str) -> Opinion:
    return Opinion(Verdict.SAME, reason)


def harmless(reason: str) -> Opinion:
    return Opinion(Verdict.HARMLESS, reason)


def translated(reason: str) -> Opinion:
    return Opinion(Verdict.TRANSLATED, reason)


def blocks(reason: str, *wishes: Wish) -> Opinion:
    return Opinion(Verdict.BLOCKS, reason, wishes)


def past(link: str) -> Opinion:
    """The opinion on a line that keeps visitors from an address, if a link gives the files another address."""
    # Apache reads the .htaccess file of the folder to which a link leads, but denied and protected paths of the panel
    # are addresses: the link's own address is not covered.
    return blocks(f"Visitors would come there by the link {link}, past it: remove the link, or give up what it keeps.")


UNKNOWN: Final = blocks("It is not known here. Find out what it does before the site moves.")
