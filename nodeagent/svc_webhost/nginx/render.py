"""Renders nginx's configuration: pure functions of a site, and of the part that all sites share.

Every value is in double quotes, which the types of `model` cannot break. Files are served from the home of the site's
account, and a symbolic link in it is followed only to files of the same account: the workers could read the files of
all sites (`disable_symlinks`). The check starts at the home, not at the document root, since an account may replace its
document root by a link as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv6Address
from pathlib import Path
from typing import Final

from svc_webhost.accepted import CHALLENGES
from svc_webhost.folders import HostFolders
from svc_webhost.nginx.access import (
    NOT_LISTED,
    access_rules,
    challenge_rules,
    password_file,
    staged_rules,
    wordpress_rules,
)
from svc_webhost.nginx.brotli import brotli_directives, load_brotli
from svc_webhost.nginx.files import NOTHING, files_rules, kept_for_a_year
from svc_webhost.nginx.front_controllers import FURTHER_ARGUMENTS, front_rules, fronted, path_info
from svc_webhost.nginx.model import (
    PROBE,
    App,
    PathRedirect,
    Php,
    Proxy,
    SiteServer,
    StaticRoot,
    Suspended,
    WordPress,
)
from svc_webhost.nginx.php import PROGRAM, php_rules, static_rules
from svc_webhost.nginx.previews import PREVIEWED, nobodys_preview, preview_directives, preview_rules, preview_socket
from svc_webhost.nginx.types import CHARSET_WITH_PAGES, types_of_files
from svc_webhost.nginx.visitors import GUESSES, visitor_bounds, with_bodies
from svc_webhost.preview_certificate import PreviewCertificate

HTTP_PORT: Final = 80
HTTPS_PORT: Final = 443
GENERATION: Final = "/generation"
"""The path on the status socket that returns the number of the served generation."""

LARGEST_BODY: Final = "512m"
"""Limit of a request's body: uploads to WordPress and shops. nginx keeps it in a file until it is complete."""
WORKER_CONNECTIONS: Final = 16_384
"""Includes connections to PHP and applications. An address may have 3,000 without a complete request: as many as can
arrive at once and within `client_header_timeout` (`svc_webhost.visitors`)."""


@dataclass(frozen=True)
class Ports:
    http: int = HTTP_PORT
    https: int = HTTPS_PORT
    ipv6: bool = True
    """False if the kernel has no IPv6: nginx would not start."""

    @property
    def listened(self) -> tuple[tuple[str, int], ...]:
        """Address and port of each `listen`."""
        every = ["0.0.0.0", *(["::"] if self.ipv6 else [])]  # noqa: S104 - sites are public
        return tuple((address, port) for port in (self.http, self.https) for address in every)

    def suffix(self, scheme: str = "https") -> str:
        """The port for a URL, if it is not the scheme's default."""
        port, usual = (self.https, HTTPS_PORT) if scheme == "https" else (self.http, HTTP_PORT)
        return "" if port == usual else f":{port}"

    @property
    def suffixes(self) -> dict[str, str]:
        """The port for a URL, by scheme."""
        return {scheme: self.suffix(scheme) for scheme in ("http", "https")}

    def listen(self, port: int, options: str = "") -> Iterator[str]:
        words = f" {options}" if options else ""
        yield f"listen {port}{words};"
        if self.ipv6:
            yield f"listen [::]:{port}{words};"


def status_socket(folders: HostFolders) -> Path:
    return folders.run / "nginx.sock"


def site_logs(folders: HostFolders, number: int) -> Path:
    return folders.site_logs / f"s{number}"


def render_site(
    site: SiteServer,
    folders: HostFolders,
    ports: Ports,
    fingerprint: str | None = None,
    previews: PreviewCertificate | None = None,
) -> str:
    """The file of one site. `fingerprint` is that of its certificate: a certificate that is replaced in place changes
    the file. `previews`: the certificate that the main file names for previews. Raises `ValueError` for a document root
    outside of the site's home."""
    tls = previews is not None and previews.is_for(site.previews)
    return "\n".join(_indented(_site(site, folders, ports, fingerprint, previews_tls=tls))) + "\n"


def needs_preview_certificate(file: str) -> bool:
    """Whether nginx takes this site's file only with a main file that names a certificate for previews."""
    return _PREVIEWS_TLS in file.splitlines()


def render_main(
    generation: int,
    folders: HostFolders,
    ports: Ports,
    worker_user: str,
    brotli: Path | None = None,
    previews: PreviewCertificate | None = None,
) -> str:
    """The main file, which includes the files of all sites. `brotli`: the module, if nginx can load it. `previews`: the
    certificate of all previews."""
    return "\n".join(_indented(_main(generation, folders, ports, worker_user, brotli, previews))) + "\n"


_PREVIEWS_TLS: Final = "# previews by HTTPS"
"""The line of a site's file that has servers for TLS without a certificate of their own."""


def _site(
    site: SiteServer, folders: HostFolders, ports: Ports, fingerprint: str | None, *, previews_tls: bool
) -> Iterator[str]:
    yield f"# {site.domain}"
    if site.certificate is not None:
        yield f"# certificate {fingerprint or 'unread'}"
    yield from _upstream(site)
    names = (site.domain, *site.aliases)
    secure = site.certificate is not None
    content = list(_content(site, folders))
    forces = secure and site.force_https
    if forced := tuple(name for name in names if forces and name not in site.uncertified):
        yield from _server(site, forced, folders, [*ports.listen(ports.http)], _to_https(ports))
        listening = [*ports.listen(ports.https, "ssl http2"), *_tls(site), *_behind_preview(site, folders)]
        yield from _server(site, forced, folders, listening, content)
    if others := tuple(name for name in names if name not in forced):
        yield from _server(site, others, folders, [*_listen(site, ports), *_behind_preview(site, folders)], content)
    for host, target in site.redirects.items():
        secured = forces and target not in site.uncertified
        to = f'"https://{target}{ports.suffix()}' if secured else f'"$scheme://{target}$svc_port'
        redirect = ["location / {", f'return 301 {to}$request_uri";', "}"]
        yield from _server(site, (host,), folders, _listen(site, ports), redirect)
    if site.previews:
        yield from _previews(site, folders, ports, tls=previews_tls)


def _previews(site: SiteServer, folders: HostFolders, ports: Ports, *, tls: bool) -> Iterator[str]:
    names, listening = tuple(site.previews), [*ports.listen(ports.http)]
    if tls:
        yield _PREVIEWS_TLS
        yield from _server(site, names, folders, listening, _to_https(ports), logged=False)
        # Without a certificate of its own, nginx uses that of the default server: one context of OpenSSL for all
        # previews, where one for each would double the time of a reload.
        listening = [*ports.listen(ports.https, "ssl http2")]
    rules = list(preview_rules(site, folders, ports.suffixes, tls=tls))
    yield from _server(site, names, folders, listening, rules, logged=False)


def _to_https(ports: Ports) -> list[str]:
    return ["location / {", f'return 301 "https://$host{ports.suffix()}$request_uri";', "}"]


def _server(
    site: SiteServer,
    names: tuple[str, ...],
    folders: HostFolders,
    listening: list[str],
    content: list[str],
    *,
    logged: bool = True,
) -> Iterator[str]:
    """`logged`: whether its requests are in the site's log of accesses."""
    logs = site_logs(folders, site.number)
    yield "server {"
    yield from listening
    yield f"server_name {' '.join(names)};"
    if logged:
        yield f'access_log "{logs}/access.log" svc;'
    yield f'error_log "{logs}/error.log" warn;'
    # Requests of the probe are not logged: the log is for visitors' requests.
    yield from (f"location = {PROBE} {{", "access_log off;", "return 404;", "}")
    yield from _challenges(folders, otherwise="=404", staged=site.staged is not None)
    yield from content
    yield "}"


def _listen(site: SiteServer, ports: Ports) -> list[str]:
    """HTTP, and HTTPS if there is a certificate."""
    secure = [*ports.listen(ports.https, "ssl http2"), *_tls(site)] if site.certificate is not None else []
    return [*ports.listen(ports.http), *secure]


def _behind_preview(site: SiteServer, folders: HostFolders) -> Iterator[str]:
    if site.previews:
        yield f'listen "unix:{preview_socket(folders)}";'


def _tls(site: SiteServer) -> Iterator[str]:
    if site.certificate is not None:
        yield f'ssl_certificate "{site.certificate.chain}";'
        yield f'ssl_certificate_key "{site.certificate.key}";'
        if site.hsts:
            # The common headers are repeated, because `add_header` at an inner level replaces all headers of the outer
            # one.
            yield from _SECURITY_HEADERS
            yield _HSTS


def _challenges(folders: HostFolders, otherwise: str, *, staged: bool = False) -> Iterator[str]:
    yield f"location ^~ {CHALLENGES} {{"
    if staged:
        yield from challenge_rules()
    yield f'alias "{folders.challenges}/";'
    yield "default_type text/plain;"
    yield f"try_files $uri {otherwise};"
    yield "}"


def _upstream(site: SiteServer) -> Iterator[str]:
    match site.serves:
        case App(socket=socket):
            yield f"upstream {site.account} {{"
            # While an application restarts, no request is refused: its socket stays, and connections wait in it.
            yield f'server "unix:{socket}" max_fails=0;'
            yield "}"
        case Proxy(addresses=addresses, port=port):
            yield f"upstream {site.account} {{"
            for address in addresses:
                host = f"[{address}]" if isinstance(address, IPv6Address) else str(address)
                yield f"server {host}:{port};"
            yield "}"
        case _:
            pass


def _content(site: SiteServer, folders: HostFolders) -> Iterator[str]:
    serves = site.serves
    if isinstance(serves, Suspended):
        yield from _suspended()
        return
    if site.staged is not None:
        # The common headers are repeated, because `add_header` at an inner level replaces all headers of the outer one.
        yield from _SECURITY_HEADERS
        yield from staged_rules(password_file(folders, site.number))
    yield from access_rules(site, folders)
    for redirect in site.path_redirects:
        yield from _redirect(redirect)
    if any(each.below and each.source == "/" for each in site.path_redirects):
        return
    match serves:
        case StaticRoot(root=root, fallback_page=page):
            yield from _files(site, root, folders)
            missing = page or NOTHING
            yield from _compressed_pictures(site, missing)
            yield from static_rules(missing)
            yield from files_rules("index.html index.htm", missing, page=page, cached=_cached(site))
        case Php(root=root, socket=socket, fallback_page=page):
            yield from _files(site, root, folders)
            yield from front_rules(site, page or PROGRAM)
            missing = fronted(site, page or PROGRAM)
            yield from _compressed_pictures(site, missing)
            yield from php_rules(socket, _told_php(site), missing)
            yield from files_rules("index.php index.html index.htm", missing, page=page, cached=_cached(site))
        case WordPress(root=root, socket=socket):
            yield from _files(site, root, folders)
            # These rules come before PHP's, because the first matching regular expression wins.
            yield from wordpress_rules()
            yield from front_rules(site, PROGRAM)
            missing = fronted(site, PROGRAM)
            yield from _compressed_pictures(site, missing)
            yield from php_rules(socket, _told_php(site), missing)
            yield from files_rules("index.php index.html index.htm", missing, cached=_cached(site))
        case App():
            yield from _proxied(site, f"http://{site.account}")
        case Proxy(host=host, tls=tls):
            yield from _proxied(site, f"{'https' if tls else 'http'}://{site.account}")
            if tls:
                yield "proxy_ssl_server_name on;"
                yield f'proxy_ssl_name "{host}";'
                yield "proxy_ssl_verify on;"
                yield "proxy_ssl_verify_depth 5;"


def _redirect(redirect: PathRedirect) -> Iterator[str]:
    query = "" if "?" in redirect.target or "#" in redirect.target else "$is_args$args"
    yield f'location {"^~" if redirect.below else "="} "{redirect.source}" {{'
    yield f'return {redirect.status} "{redirect.target}{query}";'
    yield "}"


def _files(site: SiteServer, root: str, folders: HostFolders) -> Iterator[str]:
    home = folders.sites / site.account
    if not Path(root).is_relative_to(home):
        raise ValueError(f"the document root {root} is not in the home of {site.account}")
    yield f'root "{root}";'
    if site.utf8_pages:
        yield f"charset {CHARSET_WITH_PAGES};"
    yield f'disable_symlinks if_not_owner "from={home}";'
    # These come before any other regular expression. As with Apache the status is 403, whether the file exists or not.
    yield r'location ~ "/\.ht[^/]*\z" {'
    yield "return 403;"
    yield "}"
    # Other hidden files and folders, such as .git and .env.
    yield r'location ~ "(?s)^/\.(?!well-known/)|./\." {'
    yield "return 404;"
    yield "}"


def _cached(site: SiteServer) -> list[str] | None:
    """The headers of the site's assets, if browsers may keep them."""
    if not site.cache_assets:
        return None
    return kept_for_a_year(_headers(site), public=site.staged is None and not site.asks_for_passwords)


def _headers(site: SiteServer) -> list[str]:
    """The headers of the site, repeated where a location has its own: `add_header` at an inner level replaces all
    headers of the outer one."""
    return [*_SECURITY_HEADERS, *([_HSTS] if site.hsts else []), *([NOT_LISTED] if site.staged is not None else [])]


def _compressed_pictures(site: SiteServer, missing: str) -> Iterator[str]:
    """`.svgz`, which browsers show only if the answer says that it is compressed."""
    yield r'location ~ "(?s)\.svgz\z" {'
    yield "gzip off;"
    yield from _headers(site)
    yield "add_header Content-Encoding gzip;"
    yield f"try_files $uri {missing};"
    yield "}"


def _told_php(site: SiteServer) -> dict[str, str]:
    """FastCGI parameters of this site. Hides a password that nginx itself uses: WordPress would take it for one of its
    application passwords."""
    told = path_info(site)
    if site.staged is not None:
        return {**told, "HTTP_AUTHORIZATION": '""'}
    if site.asks_for_passwords:
        return {
            **told,
            "HTTP_AUTHORIZATION": "$svc_authorization if_not_empty",
            "REMOTE_USER": "$svc_user if_not_empty",
        }
    return told


def _proxied(site: SiteServer, upstream: str) -> Iterator[str]:
    yield from with_bodies("/", [f"proxy_pass {upstream};"])
    yield "proxy_http_version 1.1;"
    # The host name with which this server was selected: the request's `Host` may be another one if its request line
    # contains an absolute URL.
    yield "proxy_set_header Host $host$svc_port;"
    # Replaces the value that the visitor has sent, instead of extending it.
    yield "proxy_set_header X-Forwarded-For $remote_addr;"
    yield "proxy_set_header X-Real-IP $remote_addr;"
    yield "proxy_set_header X-Forwarded-Proto $svc_scheme;"
    yield "proxy_set_header X-Forwarded-Host $host$svc_port;"
    yield "proxy_set_header Upgrade $http_upgrade;"
    yield "proxy_set_header Connection $svc_connection;"
    yield 'proxy_set_header Proxy "";'
    if site.asks_for_passwords:
        yield "proxy_set_header Authorization $svc_authorization;"
    yield "proxy_ignore_headers X-Accel-Redirect;"
    yield "proxy_read_timeout 300s;"


def _suspended() -> Iterator[str]:
    yield "location / {"
    yield "default_type text/html;"
    yield "add_header Retry-After 3600 always;"
    yield "add_header Cache-Control no-store always;"
    yield f'return 503 "{_SUSPENDED}";'
    yield "}"


_SUSPENDED: Final = (
    "<!doctype html><html lang='en'><head><meta charset='utf-8'><meta name='robots' content='noindex'>"
    "<meta name='viewport' content='width=device-width'><title>Site suspended</title></head>"
    "<body style='font-family: system-ui, sans-serif; margin: 15vh auto; max-width: 34rem; padding: 0 1rem'>"
    "<h1>This site is suspended</h1><p>Its owner can ask the hosting provider why, and have it opened again.</p>"
    "</body></html>"
)


def _main(
    generation: int,
    folders: HostFolders,
    ports: Ports,
    worker_user: str,
    brotli: Path | None,
    previews: PreviewCertificate | None,
) -> Iterator[str]:
    yield f"# Generation {generation}: written by the panel, which replaces it whole."
    if brotli is not None:
        yield from load_brotli(brotli)
    yield f"user {worker_user};"
    yield "daemon off;"
    yield "worker_processes auto;"
    yield "worker_rlimit_nofile 65536;"
    # After a reload, the old workers stay until their connections end: without a limit, one connection that is never
    # closed would keep them for ever.
    yield "worker_shutdown_timeout 1h;"
    yield f'pid "{folders.run}/nginx.pid";'
    yield f'error_log "{folders.nginx_log}" warn;'
    yield "events {"
    yield f"worker_connections {WORKER_CONNECTIONS};"
    yield "}"
    yield "http {"
    yield from types_of_files()
    yield from _HTTP
    if brotli is not None:
        yield from brotli_directives(_COMPRESSED, _LEAST_COMPRESSED)
    yield from visitor_bounds()
    for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"):
        yield f'{kind}_temp_path "{folders.nginx}/temporary/{kind}";'
    yield from preview_directives(folders, ports.suffixes)
    yield "map $svc_scheme $svc_port {"
    yield f'http "{ports.suffix("http")}";'
    yield f'https "{ports.suffix()}";'
    yield "}"
    yield "server {"
    yield f'listen "unix:{status_socket(folders)}";'
    yield f"location = {GENERATION} {{"
    yield "default_type text/plain;"
    yield f'return 200 "{generation}";'
    yield "}"
    yield "location / {"
    yield "return 404;"
    yield "}"
    yield "}"
    yield from _nobody(folders, ports, previews)
    yield from nobodys_preview(folders)
    yield "include sites/*.conf;"
    yield "}"


def _nobody(folders: HostFolders, ports: Ports, previews: PreviewCertificate | None) -> Iterator[str]:
    """Unknown hosts: nothing is shown, not even a certificate. Existing challenges are answered: the panel's own name
    may not belong to a site."""
    yield "server {"
    yield from ports.listen(ports.http, "default_server")
    yield "server_name _;"
    # Defines the variables for the case that no site sets them.
    yield f'set {GUESSES} "";'
    yield f'set {PREVIEWED} "";'
    yield from _challenges(folders, otherwise="=444")
    yield "location / {"
    yield "return 444;"
    yield "}"
    yield "}"
    yield "server {"
    yield from ports.listen(ports.https, "ssl http2 default_server")
    yield "server_name _;"
    # Of unknown names; the certificate is for names of previews, whose servers have none of their own.
    yield "ssl_reject_handshake on;"
    if previews is not None:
        yield f'ssl_certificate "{previews.paths.chain}";'
        yield f'ssl_certificate_key "{previews.paths.key}";'
    yield "return 444;"
    yield "}"


SCHEDULED_AGENT: Final = "Service-Schedule/1"
"""The user agent of a scheduled task."""
_SECURITY_HEADERS: Final = (
    "add_header X-Content-Type-Options $svc_content_type_options always;",
    "add_header X-Frame-Options $svc_frame_options always;",
    "add_header Referrer-Policy $svc_referrer_policy always;",
)
_HSTS: Final = "add_header Strict-Transport-Security $svc_hsts always;"

_BUFFER: Final = 8191
"""Bytes of a buffer for answers. If the received data fills a buffer exactly, nginx 1.22 waits for the rest without a
timer: this never times out, and a worker that is ended by a reload sees no activity and cuts the answer off. PHP, Node
and others write in powers of two, so no buffer has such a size."""

_COMPRESSED: Final = (
    "text/plain text/css text/xml application/javascript application/json application/xml"
    " application/rss+xml application/manifest+json image/svg+xml"
)
"""Types that are compressed, besides text/html."""
_LEAST_COMPRESSED: Final = 1024

_HTTP: Final = (
    "default_type application/octet-stream;",
    "access_log off;",
    "server_tokens off;",
    "absolute_redirect off;",
    "sendfile on;",
    "tcp_nopush on;",
    "keepalive_timeout 65s;",
    f"client_max_body_size {LARGEST_BODY};",
    f"fastcgi_buffer_size {_BUFFER};",
    f"fastcgi_buffers 8 {_BUFFER};",
    f"proxy_buffer_size {_BUFFER};",
    f"proxy_buffers 8 {_BUFFER};",
    # A name has up to 253 bytes; with these sizes nginx can store some thousand names.
    "server_names_hash_bucket_size 512;",
    "server_names_hash_max_size 16384;",
    "variables_hash_max_size 2048;",
    "disable_symlinks if_not_owner from=$document_root;",
    "gzip on;",
    "gzip_vary on;",
    "gzip_proxied any;",
    f"gzip_min_length {_LEAST_COMPRESSED};",
    f"gzip_types {_COMPRESSED};",
    "ssl_protocols TLSv1.2 TLSv1.3;",
    "ssl_ciphers ECDHE+AESGCM:ECDHE+CHACHA20;",
    "ssl_prefer_server_ciphers off;",
    "ssl_session_cache shared:tls:10m;",
    "ssl_session_timeout 1d;",
    "ssl_session_tickets off;",
    "proxy_ssl_trusted_certificate /etc/ssl/certs/ca-certificates.crt;",
    "proxy_ssl_protocols TLSv1.2 TLSv1.3;",
    *FURTHER_ARGUMENTS,
    "map $http_upgrade $svc_connection {",
    "default upgrade;",
    '"" close;',
    "}",
    # The log format is `combined`, except that the query is dropped from requests of scheduled tasks: the query may be
    # a key, and people who may not see the task can read the log. If a visitor sends this user agent, only that
    # visitor's own query is hidden.
    "map $request_uri $svc_path {",
    '"~^(?<svc_before_query>[^?]*)" $svc_before_query;',
    "}",
    "map $http_user_agent $svc_request {",
    f'"{SCHEDULED_AGENT}" "$request_method $svc_path $server_protocol";',
    "default $request;",
    "}",
    """log_format svc '$remote_addr - $remote_user [$time_local] "$svc_request" $status $body_bytes_sent"""
    """ "$http_referer" "$http_user_agent"';""",
    # If an application sends this header itself, its own is kept: with an empty value nginx adds none.
    "map $upstream_http_x_content_type_options $svc_content_type_options {",
    '"" nosniff;',
    'default "";',
    "}",
    "map $upstream_http_x_frame_options $svc_frame_options {",
    '"" SAMEORIGIN;',
    'default "";',
    "}",
    "map $upstream_http_referrer_policy $svc_referrer_policy {",
    '"" strict-origin-when-cross-origin;',
    'default "";',
    "}",
    "map $https $svc_hsts {",
    "on max-age=31536000;",
    'default "";',
    "}",
    *_SECURITY_HEADERS,
)


def _indented(lines: Iterator[str]) -> Iterator[str]:
    depth = 0
    for line in lines:
        if line == "}":
            depth -= 1
        yield "    " * depth + line
        if line.endswith(" {"):
            depth += 1
