"""The types of files that sites answer, by the ending of the name.

The types are nginx's own, those of Debian's /etc/mime.types that pages use, newer ones of IANA's register, and a few
that are common in .htaccess files. nginx's file is not included: it differs between releases, and the judge of
.htaccess files compares with this table in a process that reads no files of the server.

nginx's list lacks newer types that sites use: a module (`.mjs`), for example, would be sent as
application/octet-stream, which no browser runs.

This module imports the standard library alone.
"""

from __future__ import annotations

from typing import Final

UNKNOWN: Final = "application/octet-stream"
"""The type of files with other endings."""
TYPES: Final = {
    "application/atom+xml": "atom",
    "application/dash+xml": "mpd",
    "application/epub+zip": "epub",
    "application/geo+json": "geojson",
    "application/gzip": "gz tgz",
    "application/java-archive": "jar war ear",
    "application/javascript": "js cjs mjs",
    "application/json": "json map topojson",
    "application/ld+json": "jsonld",
    "application/mac-binhex40": "hqx",
    "application/manifest+json": "webmanifest",
    "application/msword": "doc",
    "application/pdf": "pdf",
    "application/postscript": "ps eps ai",
    "application/rdf+xml": "rdf",
    "application/rss+xml": "rss",
    "application/rtf": "rtf",
    "application/vnd.android.package-archive": "apk",
    "application/vnd.apple.mpegurl": "m3u8",
    "application/vnd.google-earth.kml+xml": "kml",
    "application/vnd.google-earth.kmz": "kmz",
    "application/vnd.ms-excel": "xls",
    "application/vnd.ms-fontobject": "eot",
    "application/vnd.ms-powerpoint": "ppt",
    "application/vnd.oasis.opendocument.graphics": "odg",
    "application/vnd.oasis.opendocument.presentation": "odp",
    "application/vnd.oasis.opendocument.spreadsheet": "ods",
    "application/vnd.oasis.opendocument.text": "odt",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation": "pptx",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/vnd.wap.wmlc": "wmlc",
    "application/wasm": "wasm",
    "application/x-7z-compressed": "7z",
    "application/x-bittorrent": "torrent",
    "application/x-bzip2": "bz2",
    "application/x-chrome-extension": "crx",
    "application/x-cocoa": "cco",
    "application/x-java-archive-diff": "jardiff",
    "application/x-java-jnlp-file": "jnlp",
    "application/x-makeself": "run",
    "application/x-perl": "pl pm",
    "application/x-pilot": "prc pdb",
    "application/x-rar-compressed": "rar",
    "application/x-redhat-package-manager": "rpm",
    "application/x-sea": "sea",
    "application/x-shockwave-flash": "swf",
    "application/x-stuffit": "sit",
    "application/x-tar": "tar",
    "application/x-tcl": "tcl tk",
    "application/x-web-app-manifest+json": "webapp",
    "application/x-x509-ca-cert": "der pem crt",
    "application/x-xpinstall": "xpi",
    "application/x-xz": "xz",
    "application/xhtml+xml": "xhtml",
    "application/xml": "xsl",
    "application/xslt+xml": "xslt",
    "application/xspf+xml": "xspf",
    "application/yaml": "yaml yml",
    "application/zip": "zip",
    "audio/aac": "aac",
    "audio/flac": "flac",
    "audio/midi": "mid midi kar",
    "audio/mp4": "f4a f4b",
    "audio/mpeg": "mp3",
    "audio/ogg": "ogg oga opus",
    "audio/webm": "weba",
    "audio/x-m4a": "m4a",
    "audio/x-realaudio": "ra",
    "audio/x-wav": "wav",
    "font/collection": "ttc",
    "font/otf": "otf",
    "font/ttf": "ttf",
    "font/woff": "woff",
    "font/woff2": "woff2",
    "image/avif": "avif",
    "image/avif-sequence": "avifs",
    "image/gif": "gif",
    "image/heic": "heic",
    "image/heic-sequence": "heics",
    "image/heif": "heif",
    "image/heif-sequence": "heifs",
    "image/jpeg": "jpeg jpg",
    "image/jxl": "jxl",
    "image/png": "png",
    "image/svg+xml": "svg svgz",
    "image/tiff": "tif tiff",
    "image/vnd.wap.wbmp": "wbmp",
    "image/webp": "webp",
    "image/x-icon": "ico cur",
    "image/x-jng": "jng",
    "image/x-ms-bmp": "bmp",
    "model/gltf+json": "gltf",
    "model/gltf-binary": "glb",
    "text/cache-manifest": "appcache",
    "text/calendar": "ics",
    "text/css": "css",
    "text/csv": "csv",
    "text/html": "html htm shtml",
    "text/markdown": "md markdown",
    "text/mathml": "mml",
    "text/plain": "txt log srt",
    "text/tab-separated-values": "tsv",
    "text/vcard": "vcf vcard",
    "text/vnd.sun.j2me.app-descriptor": "jad",
    "text/vnd.wap.wml": "wml",
    "text/vtt": "vtt",
    "text/x-component": "htc",
    "text/xml": "xml",
    "video/3gpp": "3gpp 3gp",
    "video/mp2t": "ts",
    "video/mp4": "mp4 f4v f4p",
    "video/mpeg": "mpeg mpg",
    "video/ogg": "ogv ogm",
    "video/quicktime": "mov",
    "video/webm": "webm",
    "video/x-flv": "flv",
    "video/x-m4v": "m4v",
    "video/x-matroska": "mkv",
    "video/x-mng": "mng",
    "video/x-ms-asf": "asx asf",
    "video/x-ms-wmv": "wmv",
    "video/x-msvideo": "avi",
}
_BY_ENDING: Final = {ending: name for name, endings in TYPES.items() for ending in endings.split()}


def type_of(ending: str) -> str:
    """The type of files with this ending, in lower case without its dot."""
    return _BY_ENDING.get(ending, UNKNOWN)


def is_page(media_type: str) -> bool:
    """Whether browsers show files of this type as a page, with its scripts: HTML, and XML, which may contain HTML."""
    return media_type in ("text/html", "text/xml", "application/xml") or media_type.endswith("+xml")


PAGES: Final = frozenset(ending for ending, name in _BY_ENDING.items() if is_page(name))
"""The endings of such files."""
