"""Types of files, in addition to those of nginx's own mime.types, and the character set of text.

nginx's list has none of what sites use of today: a module (`.mjs`) as application/octet-stream is not run by any
browser. The names are those of Debian's /etc/mime.types and, for what is newer, of IANA's register. They are written
here, since not every server has that file, and a site answers alike on all of them.

Text is UTF-8 if it does not say otherwise. HTML and XML are left alone: a file in another character set says so within
itself, and the header would overrule that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_TYPES: Final = {
    "application/epub+zip": "epub",
    "application/geo+json": "geojson",
    "application/gzip": "gz tgz",
    "application/javascript": "cjs mjs",
    "application/json": "map topojson",
    "application/ld+json": "jsonld",
    "application/manifest+json": "webmanifest",
    "application/dash+xml": "mpd",
    "application/vnd.android.package-archive": "apk",
    "application/x-bzip2": "bz2",
    "application/x-tar": "tar",
    "application/x-xz": "xz",
    "application/xslt+xml": "xslt",
    "application/yaml": "yaml yml",
    "audio/aac": "aac",
    "audio/flac": "flac",
    "audio/ogg": "oga opus",
    "audio/x-wav": "wav",
    "font/collection": "ttc",
    "font/otf": "otf",
    "font/ttf": "ttf",
    "image/heic": "heic",
    "image/heif": "heif",
    "image/jxl": "jxl",
    "model/gltf+json": "gltf",
    "model/gltf-binary": "glb",
    "text/calendar": "ics",
    "text/csv": "csv",
    "text/markdown": "md markdown",
    "text/plain": "log srt",
    "text/tab-separated-values": "tsv",
    "text/vcard": "vcf",
    "text/vtt": "vtt",
    "application/xml": "xsl",
    "video/ogg": "ogv",
    "video/x-matroska": "mkv",
}
_UTF_8: Final = (
    "text/(plain|css|csv|calendar|javascript|markdown|tab-separated-values|vcard|vtt)",
    "application/javascript",
)


def types_of_files() -> Iterator[str]:
    """Directives of the http block."""
    yield "include /etc/nginx/mime.types;"
    yield "types {"
    for name, endings in _TYPES.items():
        yield f"{name} {endings};"
    yield "}"
    # charset_types cannot leave out text/html.
    yield "map $sent_http_content_type $svc_charset {"
    yield 'default "";'
    for pattern in _UTF_8:
        yield f'"~^{pattern}\\z" utf-8;'
    yield "}"
    yield "charset $svc_charset;"
    yield "charset_types *;"
