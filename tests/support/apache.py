"""Apache 2.4 as a host configures it whose customers say everything else in .htaccess files, and a php-fpm that several
web servers ask."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import trio

from svc_webhost.nginx import Certificate, SiteServer
from tests.support.stack import free_port

_MODULES: Final = (
    *("mpm_event", "authz_core", "authz_host", "authz_user", "access_compat", "authn_core", "authn_file", "auth_basic"),
    *("alias", "rewrite", "dir", "mime", "headers", "expires", "setenvif", "env", "filter", "deflate", "autoindex"),
    *("negotiation", "proxy", "proxy_fcgi", "ssl", "cgid"),
)


@contextmanager
def apache(
    folder: Path, sites: list[SiteServer], root: Mapping[int, Path], *, php: Path | None = None
) -> Iterator[tuple[int, int]]:
    """Gives its ports, of HTTP and HTTPS. `php`: the socket of what runs files that end with .php."""
    http, https = free_port(), free_port()
    folder.mkdir()
    lines = [f"LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so" for name in _MODULES]
    lines += ["ServerName localhost", f'PidFile "{folder}/pid"', f"Listen 127.0.0.1:{http}"]
    if any(site.certificate is not None for site in sites):
        lines += [f"Listen 127.0.0.1:{https}"]
    lines += ["User www-data", "Group www-data"]
    lines += [
        f'ErrorLog "{folder}/error.log"',
        "TypesConfig /etc/mime.types",
        "DirectoryIndex index.php index.html index.htm",
    ]
    lines += [f'<Directory "{folder.parent}">', "Options FollowSymLinks", "AllowOverride All", "Require all granted"]
    lines += ["</Directory>", r'<FilesMatch "^\.ht">', "Require all denied", "</FilesMatch>"]
    if php is not None:
        lines += [r'<FilesMatch "\.php$">', f'SetHandler "proxy:unix:{php}|fcgi://localhost"', "</FilesMatch>"]
    for site in sites:
        named = [f"ServerName {site.domain}", *(f"ServerAlias {alias}" for alias in (*site.aliases, *site.redirects))]
        named += [f'DocumentRoot "{root[site.number]}"', "</VirtualHost>"]
        lines += [f"<VirtualHost *:{http}>", *named]
        if site.certificate is not None:
            lines += [f"<VirtualHost *:{https}>", *_secure(site.certificate), *named]
    (folder / "apache.conf").write_text("\n".join(lines) + "\n")
    with _running(["/usr/sbin/apache2", "-DFOREGROUND", "-f", str(folder / "apache.conf")]):
        yield http, https


def _secure(certificate: Certificate) -> list[str]:
    files = [f'SSLCertificateFile "{certificate.chain}"', f'SSLCertificateKeyFile "{certificate.key}"']
    return ["SSLEngine on", *files]


@contextmanager
def php_fpm(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[Path]:
    """Gives its socket. `settings`: of PHP."""
    folder.mkdir()
    listening = folder / "php.sock"
    pool = ["[pages]", "user = www-data", "group = www-data", f"listen = {listening}", "listen.mode = 0666"]
    pool += ["pm = static", "pm.max_children = 4"]
    pool += [f"php_admin_value[{name}] = {value}" for name, value in (settings or {}).items()]
    lines = ["[global]", "daemonize = no", f"error_log = {folder}/error.log", *pool]
    (folder / "fpm.conf").write_text("\n".join(lines) + "\n")
    [program, *_] = sorted(Path("/usr/sbin").glob("php-fpm[0-9].[0-9]"), reverse=True)
    with _running([str(program), "--nodaemonize", "--fpm-config", str(folder / "fpm.conf")]):
        yield listening


@contextmanager
def _running(command: list[str]) -> Iterator[None]:
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


async def accepting(address: int | Path) -> None:
    """Until there is somebody who listens on this port, or at this socket."""
    with trio.fail_after(30):
        while True:
            try:
                if isinstance(address, Path):
                    stream = await trio.open_unix_socket(str(address))
                else:
                    stream = await trio.open_tcp_stream("127.0.0.1", address)
            except OSError:
                await trio.sleep(0.05)  # A process is starting.
            else:
                await stream.aclose()
                return
