"""Preview addresses: a site at a further name, before the DNS leads its own names here.

A preview name passes each request on to the site's own server, by a Unix socket of nginx's, with the site's name as
the host: so the site answers exactly as it does at its own name, with its denied paths, passwords, limits and logs.
The answer is translated on its way back: addresses of the site become addresses of the preview, in redirects, cookies,
and texts of the types that browsers load.

Invariants:
- the socket is the web server's alone (`svc_webhost.nginx.program`), and only what comes by it may state a visitor's
  address (`preview_directives`). The header is replaced here, so visitors cannot forge it;
- the requested host never reaches the site: it gets names of its own only;
- the site's server alone counts a request, as of the visitor, in its limits and its log.

The site is asked by HTTPS, as far as it can tell, since most sites will be; one that leads its visitors to HTTPS itself
would otherwise redirect in a circle.

Why: docs/decisions/0059-preview-addresses.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from svc_webhost.folders import HostFolders
from svc_webhost.nginx.access import NOT_LISTED, ROBOTS
from svc_webhost.nginx.model import SiteServer

PREVIEWED: Final = "$svc_previewed"
"""The name of the site that a preview shows."""
REQUESTS: Final = 128
"""The most concurrent requests of a site's previews. Each one takes three connections of nginx's, not one."""
_VISITOR: Final = "X-Svc-Visitor"
"""The header with the visitor's address, from one server of nginx to the other."""
_PATTERNS: Final = 255
"""The most patterns of texts that nginx takes."""
_ENDS: Final = {
    "//": ("/", r"\"", "'", "<", "?", "#", r"\\", "&", " ", r"\n"),
    r"\/\/": (r"\\", r"\"", "'", "&"),
}
"""What ends a name in a text, by how its slashes are written: as nginx's configuration has it. Without its end,
`//example.co` would be found in `//example.com`, and links to others would lead to names that anybody may register."""
_TYPES: Final = (
    *("text/css", "text/javascript", "application/javascript", "application/x-javascript"),
    *("application/json", "application/ld+json", "application/manifest+json"),
    *("text/xml", "application/xml", "application/rss+xml", "application/atom+xml", "application/xhtml+xml"),
    "image/svg+xml",
)
"""Types of answers that are translated, in addition to text/html."""
_HIDDEN: Final = (
    # These headers would apply to the preview's name, or keep the preview from working without TLS.
    *("Strict-Transport-Security", "Content-Security-Policy", "Content-Security-Policy-Report-Only", "Alt-Svc"),
    # Addresses of the site, which nginx does not translate in these headers.
    *("Link", "X-Pingback"),
    "X-Robots-Tag",
)


def preview_socket(folders: HostFolders) -> Path:
    return folders.run / "nginx-previews.sock"


def preview_directives(folders: HostFolders, ports: Mapping[str, str]) -> Iterator[str]:
    """Directives for all sites. `ports`: as for `preview_rules`."""
    https = ports["https"]
    # The only other Unix socket is that of the status.
    yield "set_real_ip_from unix:;"
    yield f"real_ip_header {_VISITOR};"
    yield "limit_conn_zone $server_name zone=svc_previews:2m;"
    # In Origin and Referer, browsers send the preview's name; the site expects its own name there.
    own, own_port = f'"https://{PREVIEWED}{https}', _own_port(ports)
    yield 'map "$host $http_origin" $svc_preview_origin {'
    yield rf'"~(?s)^(\S+) https?://\1{own_port}\z" {own}";'
    yield "default $http_origin;"
    yield "}"
    yield 'map "$host $http_referer" $svc_preview_referer {'
    yield rf'"~(?s)^(\S+) https?://\1{own_port}(?<svc_referer_path>/.*)?\z" {own}$svc_referer_path";'
    yield "default $http_referer;"
    yield "}"
    # What the site's programs learn about the connection: HTTPS at its usual port.
    for name, of_preview, otherwise in (
        ("scheme", "https", "$scheme"),
        ("server_addr", "127.0.0.1", "$server_addr"),
        ("server_port", https.removeprefix(":") or "443", "$server_port"),
    ):
        yield f"map $server_addr $svc_{name} {{"
        yield f'"~^unix:" "{of_preview}";'
        yield f"default {otherwise};"
        yield "}"
    yield "map $svc_scheme $svc_https {"
    yield "https on;"
    yield 'default "";'
    yield "}"


def nobodys_preview(folders: HostFolders) -> Iterator[str]:
    """The server for requests of a site that has gone since the preview's server took them."""
    yield "server {"
    yield f'listen "unix:{preview_socket(folders)}" default_server;'
    yield "server_name _;"
    yield "return 444;"
    yield "}"


def preview_rules(site: SiteServer, folders: HostFolders, ports: Mapping[str, str], *, tls: bool) -> Iterator[str]:
    """What the server of a site's preview names does. `ports`: how addresses of a site end, by scheme: the port, if it
    is not the usual one. `tls`: whether browsers come by HTTPS."""
    yield f'set {PREVIEWED} "{site.domain}";'
    for preview, name in site.previews.items():
        if name != site.domain:
            yield f'if ($host = "{preview}") {{'
            yield f'set {PREVIEWED} "{name}";'
            yield "}"
    # Replaces the limits for visitors' requests and bodies, which the site's own server applies.
    yield f"limit_conn svc_previews {REQUESTS};"
    yield "location = /robots.txt {"
    yield "default_type text/plain;"
    yield f'return 200 "{ROBOTS}";'
    yield "}"
    yield NOT_LISTED
    # All within the location: nginx prepares each of these directives again for each location that inherits it.
    yield "location / {"
    yield f'proxy_pass "http://unix:{preview_socket(folders)}:";'
    yield from _request()
    yield from _answer(tls=tls)
    yield from _addresses(site, ports, tls=tls)
    yield "}"


def _request() -> Iterator[str]:
    yield "proxy_http_version 1.1;"
    yield f"proxy_set_header Host {PREVIEWED};"
    yield f"proxy_set_header {_VISITOR} $remote_addr;"
    yield "proxy_set_header Origin $svc_preview_origin;"
    yield "proxy_set_header Referer $svc_preview_referer;"
    yield "proxy_set_header Upgrade $http_upgrade;"
    yield "proxy_set_header Connection $svc_connection;"
    # A compressed answer could not be translated; it is compressed afterwards.
    yield 'proxy_set_header Accept-Encoding "";'
    # The site's server keeps bodies and unread answers on the disk, once and within its limits.
    yield "proxy_request_buffering off;"
    yield "proxy_max_temp_file_size 0;"
    yield "proxy_read_timeout 300s;"


def _answer(*, tls: bool) -> Iterator[str]:
    yield from (f"proxy_hide_header {name};" for name in _HIDDEN)
    yield "proxy_ignore_headers X-Accel-Redirect X-Accel-Expires X-Accel-Limit-Rate X-Accel-Buffering X-Accel-Charset;"
    # Whatever domain a cookie names, it is set to the preview's name, so that the cookie stays at this preview.
    yield 'proxy_cookie_domain "~." "$host";'
    if not tls:
        # Browsers drop these cookies without TLS, and nobody could sign in.
        yield 'proxy_cookie_flags "~" nosecure nosamesite;'
    yield f"sub_filter_types {' '.join(_TYPES)};"
    yield "sub_filter_once off;"


def _own_port(ports: Mapping[str, str]) -> str:
    """A regular expression for the port of a site in an address, if there is one. Other ports are other services."""
    numbers = sorted({"80", "443", *(port.removeprefix(":") for port in ports.values() if port)})
    return f"(?::(?:{'|'.join(numbers)}))?"


def _addresses(site: SiteServer, ports: Mapping[str, str], *, tls: bool) -> Iterator[str]:
    shown = {name: preview for preview, name in site.previews.items()}
    served = (f"www.{site.domain}", site.domain.removeprefix("www."), *sorted(shown))
    shown |= {host: shown[target] for host, target in site.redirects.items() if target in shown}
    own_port, scheme = _own_port(ports), "https" if tls else "http"
    patterns = list[tuple[str, str]]()
    # The first ones are translated in texts, too: the primary name, the one with or without www, then the others.
    for name in dict.fromkeys((site.domain, *served, *sorted(shown))):
        if name not in shown:
            continue
        preview = f"{shown[name]}{ports[scheme]}"
        there = rf"~*(?s)^(?:https?:)?//{re.escape(name)}{own_port}(?<svc_location>[/?#].*)?\z"
        yield f'proxy_redirect "{there}" "{scheme}://{preview}$svc_location";'
        further = list(_texts(name, preview, scheme, ports))
        if len(patterns) + len(further) <= _PATTERNS:
            patterns += further
    yield from (f'sub_filter "{text}" "{translated}";' for text, translated in patterns)


def _texts(name: str, preview: str, scheme: str, ports: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Addresses of a name in texts, and what each becomes. `scheme`: the preview's. Addresses with the same scheme are
    found by their slashes, as are those without one."""
    other = "http" if scheme == "https" else "https"
    for slashes, ends in _ENDS.items():
        for end in ends:
            for port in sorted({"", ports[other]}):
                yield f"{other}:{slashes}{name}{port}{end}", f"{scheme}:{slashes}{preview}{end}"
            for port in sorted({"", ports[scheme]}):
                yield f"{slashes}{name}{port}{end}", f"{slashes}{preview}{end}"
