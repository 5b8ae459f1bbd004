"""Types of files, and the character set of text.

Text is UTF-8 if it does not say otherwise. HTML and XML get no character set in the header: such a file may declare
another one itself, and the header would override it. A site may want its pages of HTML sent as UTF-8 as well
(`SiteServer.utf8_pages`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from svc_webhost.file_types import TYPES

CHARSET_WITH_PAGES: Final = "$svc_charset_with_pages"
"""The character set of an answer of a site whose pages of HTML are UTF-8."""
_CHARSET: Final = "$svc_charset"
_UTF_8: Final = (
    "text/(plain|css|csv|calendar|javascript|markdown|tab-separated-values|vcard|vtt)",
    "application/javascript",
)


def types_of_files() -> Iterator[str]:
    """Directives of the http block."""
    yield "types {"
    for name, endings in TYPES.items():
        yield f"{name} {endings};"
    yield "}"
    # charset_types cannot leave out text/html.
    for variable, patterns in ((_CHARSET, _UTF_8), (CHARSET_WITH_PAGES, (*_UTF_8, "text/html"))):
        yield f"map $sent_http_content_type {variable} {{"
        yield 'default "";'
        for pattern in patterns:
            yield f'"~^{pattern}\\z" utf-8;'
        yield "}"
    yield f"charset {_CHARSET};"
    yield "charset_types *;"
