"""Judges lines about a file's type and character set, about filters that change the file on its way, and about who may
cache it. Each is judged by what nginx answers here (`svc_webhost.file_types`).

Two types are alike if no browser treats files of the one and the other differently: JavaScript under its former names,
fonts and pictures, whose types browsers do not look at, and downloads of any type.

Rejected: types by site. A line that gives files an active type (`AddType text/html .txt`) would turn uploads that are
harmless here into pages.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Final

from svc_webhost.apache.htaccess import Directive, narrowing
from svc_webhost.file_types import UNKNOWN, type_of
from svc_webhost.htaccess.denying import SOURCES, names_of
from svc_webhost.htaccess.situation import Situation
from svc_webhost.htaccess.verdicts import Opinion, Utf8Pages, Verdict, blocks, harmless, same, translated

_JAVASCRIPT: Final = re.compile(r"(?:application|text)/(?:x-)?(?:java|ecma)script|text/(?:jscript|livescript)")
_XML: Final = {"text/xml", "application/xml"}
_FONT: Final = re.compile(
    r"font/.*|application/(?:x-)?(?:font-.*|woff2?|ttf|otf)|application/vnd\.ms-(?:fontobject|opentype)"
)
_PICTURE: Final = re.compile(r"image/(?!svg).*")
_JSON: Final = re.compile(r"(?:application|text)/(?:x-)?(?:[\w.-]+\+)?json")
_GROUPS: Final = (
    {"audio/mp4", "audio/x-m4a", "audio/m4a", "audio/aac", "audio/x-aac"},
    {"audio/mpeg", "audio/mp3", "audio/x-mp3"},
    {"audio/ogg", "video/ogg", "application/ogg"},
    {"audio/wav", "audio/wave", "audio/x-wav"},
    {"video/mp4", "video/x-m4v", "video/m4v"},
    {"application/vnd.apple.mpegurl", "application/x-mpegurl"},
    {"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml"},
    {"text/markdown", "text/x-markdown"},
    {"text/vcard", "text/x-vcard", "text/directory"},
)
_SHOWN: Final = re.compile(
    r"(?:text|image|audio|video|font|multipart|message)/.*|application/(?:pdf|wasm|ogg|xml|.*\+xml|.*json.*|.*script.*)"
)
"""Types of files that browsers show, play or run. They download all others, whatever the type."""
_RUNS: Final = re.compile(r"httpd|cgi|server-parsed|x-mapp|type-map|imagemap")
"""Types that are names of handlers: Apache runs such files."""
_PROGRAMS: Final = frozenset({"pl", "pm", "py", "cgi", "sh", "asp", "aspx", "jsp", "rb", "exe", "dll"})
"""Endings of programs, which nginx sends as downloads."""
_UTF_8: Final = {"utf-8", "utf8"}
_WITH_CHARSET: Final = re.compile(r"text/.*|application/(?:.*xml|.*script|.*json)|image/svg\+xml")
_COMPRESSES: Final = {"deflate", "brotli_compress", "brotli", "gzip"}
_COMPRESSED: Final = "nginx compresses by itself."
_SECRET: Final = {"private", "no-store", "cookie", "authorization", "*"}
"""Words of Cache-Control and of Vary: the answer is not for other visitors."""


def typed(directive: Directive, endings: Collection[str], situation: Situation) -> Opinion:
    """The opinion on a line that gives files with these endings the type of its first argument."""
    media_type, _, parameters = directive.arguments[0].lower().partition(";")
    media_type, charset = media_type.strip(), parameters.strip().removeprefix("charset=").strip("\"'")
    if _RUNS.search(media_type) or (parameters.strip() and not parameters.strip().startswith("charset=")):
        return blocks("nginx runs as PHP what ends with .php, and nothing else.")
    opinions = [_type_opinion(ending, media_type) for ending in sorted(endings) if ending not in SOURCES]
    if charset:
        opinions += [_charset_opinion(ending, charset, directive, situation) for ending in sorted(endings)]
    return _worst(opinions) or same("nginx shows none of these files.")


def endings_of(directive: Directive) -> frozenset[str] | None:
    """The endings of the files that the section around the line is about; None if they are not known, or if there is no
    section."""
    sections = [section for section in directive.sections if section.name in narrowing(directive)]
    names = names_of(sections[0]) if len(sections) == 1 else None
    if not names or not all("." in name and not name.endswith("*") for name in names):
        return None
    return frozenset(name.rpartition(".")[2].lower() for name in names)


def default_charset(directive: Directive, situation: Situation) -> Opinion:
    """AddDefaultCharset, which is for text/plain and text/html without a character set of their own."""
    charset = directive.arguments[0].lower() if len(directive.arguments) == 1 else ""
    if charset == "off":
        return same("nginx does not say the character set of pages.")
    if charset in _UTF_8:
        return _utf8_pages(directive, situation)
    return blocks("nginx says UTF-8 for text, and leaves the character set of pages to the pages.")


def added_charset(directive: Directive, situation: Situation) -> Opinion:
    """AddCharset."""
    if len(directive.arguments) < 2:
        return blocks("Apache refuses a file with this line, and serves nothing where it applies.")
    charset, *endings = (argument.lower().lstrip(".") for argument in directive.arguments)
    opinions = [_charset_opinion(ending, charset, directive, situation) for ending in endings]
    return _worst(opinions) or harmless("Files of these types have no character set.")


def filtered(directive: Directive) -> Opinion:
    """AddOutputFilter, AddOutputFilterByType, SetOutputFilter."""
    arguments = [argument.lower() for argument in directive.arguments]
    if len(arguments) < (1 if directive.name == "setoutputfilter" else 2) or "#" in arguments:
        return blocks("Apache refuses a file with this line, and serves nothing where it applies.")
    filters = set(arguments[0].split(";"))
    if filters <= _COMPRESSES:
        return harmless(_COMPRESSED)
    if "includes" in filters:
        return blocks("nginx does not process server-side includes: visitors would get the pages without them.")
    return blocks(f"nginx has no such filter: {', '.join(sorted(filters - _COMPRESSES))}.")


def caching(action: str, value: Sequence[str], directive: Directive, situation: Situation) -> Opinion:
    """A line about the header Cache-Control or Vary. Such as `private` and `no-store` keep what one visitor got from
    others; for files that are the same for everybody they say how long browsers keep them."""
    words = set(re.split(r"[\s,=\"']+", " ".join(value)))
    if action == "unset" or not words & _SECRET:
        return harmless("How long browsers keep files.")
    if situation.logins is None and (not situation.php or _only_files(directive)):
        return harmless("How long browsers keep files, which are the same for all visitors.")
    return blocks(
        "Browsers and caches may keep here what this line has them forget. The application can send the header itself."
    )


def _type_opinion(ending: str, media_type: str) -> Opinion:
    ours = type_of(ending)
    if ours == media_type:
        return same("nginx says the same type.")
    if alike(ours, media_type):
        return harmless("Browsers treat files of this type and of that by nginx alike.")
    if ending in _PROGRAMS and media_type == "text/plain":
        return harmless("nginx runs no such program, and sends it as a download.")
    if not _SHOWN.fullmatch(media_type):
        return blocks(f"nginx sends files that end with .{ending} as {ours}: browsers show them, not download them.")
    return blocks(f"nginx sends files that end with .{ending} as {ours}.")


def alike(ours: str, theirs: str) -> bool:
    """Whether browsers treat files of the two types alike."""
    for kind in (_JAVASCRIPT, _FONT, _PICTURE, _JSON):
        if kind.fullmatch(ours) and kind.fullmatch(theirs):
            return True
    # Browsers download a font that is asked for by itself, whatever its type.
    if _FONT.fullmatch(ours) and theirs == UNKNOWN:
        return True
    both = {ours, theirs}
    if both <= _XML or any(both <= group for group in _GROUPS):
        return True
    return not (_SHOWN.fullmatch(ours) or _SHOWN.fullmatch(theirs))


def _charset_opinion(ending: str, charset: str, directive: Directive, situation: Situation) -> Opinion:
    ours = type_of(ending)
    if ending in SOURCES or not _WITH_CHARSET.fullmatch(ours):
        return harmless("Programs say their character set themselves, and files of other types have none.")
    if charset not in _UTF_8:
        return blocks(f"nginx says UTF-8 for text, and nothing for other files: .{ending} would be read as such.")
    if ours == "text/html":
        return _utf8_pages(directive, situation)
    # XML and JSON are UTF-8 by their definition, and XML in another character set says so within itself.
    return same("nginx says the same of text; other files are UTF-8 unless they say otherwise.")


def _utf8_pages(directive: Directive, situation: Situation) -> Opinion:
    if situation.utf8_pages:
        return translated("Pages of HTML are sent as UTF-8.")
    advice = "Have the site send its pages of HTML as UTF-8 (`utf8_pages`), if they do not say it themselves."
    # The setting is for the whole site.
    return blocks(advice, *([Utf8Pages()] if situation.at_top and not narrowing(directive) else []))


def _only_files(directive: Directive) -> bool:
    """Whether the line is about files alone that no program answers for."""
    endings = endings_of(directive)
    return endings is not None and endings.isdisjoint(SOURCES)


def _worst(opinions: Sequence[Opinion]) -> Opinion | None:
    """One opinion for all: an ending that blocks makes the line block. If it also blocks for a reason that no setting
    removes, it asks for none."""
    blocking = [each for each in opinions if each.verdict is Verdict.BLOCKS]
    if blocking:
        return next((each for each in blocking if not each.wishes), blocking[0])
    order = (Verdict.TRANSLATED, Verdict.HARMLESS, Verdict.SAME)
    return min(opinions, key=lambda each: order.index(each.verdict), default=None)
