"""The verdicts over .htaccess files against Apache 2.4, which reads them, and nginx as it is configured for a site,
over the same document roots.

Where nothing blocks, nginx answers as Apache does. Dotfiles alone may have another status: nginx answers 404 whatever
Apache says. `SVC_HTACCESS_FILES=10000` compares so many files instead of the few that each run has.
"""

from __future__ import annotations

import http.client
import os
import random
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import pytest
import trio

from svc_actors.host.nginx import SiteServer
from svc_actors.panel.htaccess import Situation, Verdict, judge, parse
from tests.support.figures import report_figure
from tests.support.nginx import Sites, nginx_sites

pytestmark = [pytest.mark.system, pytest.mark.isolated]

FILES: Final = int(os.environ.get("SVC_HTACCESS_FILES", "300"))
AT_ONCE: Final = 500
"""Sites of one nginx and one Apache."""
SEED: Final = 20261125
PATHS: Final = (
    *("/", "/a.txt", "/a.txt?x=1", "/%61.txt", "/A.TXT", "/secret", "/.env", "/.htaccess", "/linked.txt", "/missing"),
    *("/folder", "/folder/", "/folder/index.html", "/empty/", "/folder/../secret"),
)
PIECES: Final = (
    *("Options -Indexes", "Options None", "Options +FollowSymLinks", "Options -FollowSymLinks", "Options All -Indexes"),
    *("Order deny,allow", "Order allow,deny", "Allow from all", "Deny from all", "Deny from 127.0.0.1"),
    *("Require all granted", "Require all denied", "Require not ip 127.0.0.1", "Satisfy any"),
    *("AuthType Basic", "AuthName x", "AuthUserFile /nowhere", "Require valid-user"),
    '<Files ".env">\nRequire all denied\n</Files>',
    "<Files secret>\nOrder allow,deny\nDeny from all\n</Files>",
    '<FilesMatch "^\\.">\nRequire all denied\n</FilesMatch>',
    '<FilesMatch "^\\.ht|secret">\nRequire all denied\n</FilesMatch>',
    "<IfModule mod_authz_core.c>\nRequire all denied\n</IfModule>",
    "<IfModule !mod_authz_core.c>\nDeny from all\n</IfModule>",
    *("RewriteEngine on", "RewriteRule ^secret - [F]", "RewriteRule ^a\\.txt$ /secret [L]"),
    "RewriteCond %{HTTP_REFERER} !^$\nRewriteRule \\.txt$ - [F,NC]",
    *("Redirect /a.txt /secret", "Redirect gone /secret", "RedirectMatch 403 secret"),
    *("ErrorDocument 404 /a.txt", "ErrorDocument 404 https://example.org/", "ErrorDocument 403 refused"),
    *("DirectoryIndex index.html", "DirectoryIndex a.txt", "DirectoryIndex index.html index.htm"),
    *("ExpiresActive on", 'ExpiresByType text/plain "access plus 1 day"', "FileETag None", "AddType text/plain .x"),
    *('Header set Cache-Control "max-age=60"', "Header unset ETag", "Header set X-Frame-Options SAMEORIGIN"),
    *(
        "AddDefaultCharset utf-8",
        "ServerSignature Off",
        "SetEnvIf Referer x bad",
        "Deny from env=bad",
        "php_flag engine off",
    ),
    *("# a comment", "# a comment \\", "Nonsense", "<Limit GET>\nDeny from all\n</Limit>", "Options -Indexes # none"),
)
CORPUS: Final = (
    "",
    "<Files .htaccess>\nOrder allow,deny\nDeny from all\n</Files>\nOptions -Indexes",
    "Order deny,allow\nOrder allow,deny",
    "Require all granted\nOrder allow,deny",
    '<FilesMatch "^\\.[^](]|secret">\nRequire all denied\n</FilesMatch>',
    "# x\\\r\r\nRequire all denied",
)
MODULES: Final = (
    *("mpm_event", "authz_core", "authz_host", "authz_user", "access_compat", "authn_core", "authn_file", "auth_basic"),
    *("alias", "rewrite", "dir", "mime", "headers", "expires", "setenvif", "env", "filter", "deflate", "autoindex"),
)


def generated() -> list[str]:
    chosen = random.Random(SEED)
    return [*CORPUS, *("\n".join(chosen.sample(PIECES, chosen.randint(1, 4))) + "\n" for _ in range(FILES))]


def furnish(root: Path, text: str) -> None:
    for name in ("folder", "empty"):
        (root / name).mkdir()
    for name in ("a.txt", "secret", ".env", "index.html", "folder/index.html"):
        (root / name).write_text(f"this is {name}")
    (root / "linked.txt").symlink_to("a.txt")
    (root / ".htaccess").write_text(text, newline="")


@contextmanager
def apache(folder: Path, sites: list[SiteServer], root: dict[int, Path]) -> Iterator[int]:
    """As a host configures it whose customers say everything else; gives its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder.mkdir()
    lines = [f"LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so" for name in MODULES]
    lines += ["ServerName localhost", f'PidFile "{folder}/pid"', f"Listen 127.0.0.1:{port}", "User www-data"]
    lines += ["Group www-data", f'ErrorLog "{folder}/error.log"', "TypesConfig /etc/mime.types"]
    lines += [f'<Directory "{folder.parent}">', "Options FollowSymLinks", "AllowOverride All", "Require all granted"]
    lines += ["</Directory>"]
    for site in sites:
        lines += [
            "<VirtualHost *>",
            f"ServerName {site.domain}",
            f'DocumentRoot "{root[site.number]}"',
            "</VirtualHost>",
        ]
    (folder / "apache.conf").write_text("\n".join(lines) + "\n")
    command = ["/usr/sbin/apache2", "-DFOREGROUND", "-f", str(folder / "apache.conf")]
    process = subprocess.Popen(command)
    try:
        yield port
    finally:
        process.terminate()
        process.wait(30)


async def listening(port: int) -> None:
    with trio.fail_after(30):
        while True:
            try:
                stream = await trio.open_tcp_stream("127.0.0.1", port)
            except OSError:
                await trio.sleep(0.05)  # Until it listens.
            else:
                await stream.aclose()
                return


class Answer(NamedTuple):
    """`shown` is compared where something is: what an error says differs."""

    status: int
    location: str | None
    shown: bytes


def answers(port: int, host: str) -> dict[str, Answer]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    found = {}
    for path in PATHS:
        connection.request("GET", path, headers={"Host": host})
        answer = connection.getresponse()
        body, location = answer.read(), answer.headers["Location"]
        if location is not None:
            # Their ports are not the same.
            location = urlsplit(location)._replace(scheme="", netloc="").geturl()
        found[path] = Answer(answer.status, location, body if answer.status == 200 else b"")
    connection.close()
    return found


@dataclass
class Compared:
    answers: int = 0
    leaks: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    def take(self, text: str, path: str, theirs: Answer, ours: Answer) -> None:
        self.answers += 1
        if theirs == ours:
            return
        what = f"{text!r}: {path} is {theirs} at Apache, {ours} here"
        if theirs.status >= 400 > ours.status:
            self.leaks.append(what)
        if not (path.startswith("/.") and ours.status == 404):
            self.differences.append(what)


def blocks(text: str) -> bool:
    situation = Situation(PurePosixPath("."), php=False, wordpress=False, force_https=False)
    return any(one.opinion.verdict is Verdict.BLOCKS for one in judge(parse(text), situation))


async def compare(nginx: Sites, texts: list[str], found: Compared) -> None:
    sites = nginx.sites(len(texts))
    roots = {site.number: nginx.folders.sites / f"s{site.number}" / "public" for site in sites}
    for site, text in zip(sites, texts, strict=True):
        furnish(roots[site.number], text)
    await nginx.generations.start(sites)
    with apache(nginx.folders.sites / "apache", sites, roots) as port:
        await listening(port)
        for site, text in zip(sites, texts, strict=True):
            theirs = await trio.to_thread.run_sync(answers, port, site.domain)
            ours = await trio.to_thread.run_sync(answers, nginx.ports.http, site.domain)
            for path in PATHS:
                found.take(text, path, theirs[path], ours[path])


async def test_where_nothing_blocks_nginx_answers_as_apache_does_and_serves_nothing_that_it_denies() -> None:
    texts = generated()
    ready = [text for text in texts if not blocks(text)]
    found = Compared()
    for begin in range(0, len(ready), AT_ONCE):
        with nginx_sites() as nginx:
            await compare(nginx, ready[begin : begin + AT_ONCE], found)

    differ, leak = len(found.differences), len(found.leaks)
    report_figure(
        f".htaccess: {len(ready)} of {len(texts)} files block nothing; of {found.answers} answers of these"
        f" {differ} differ from Apache's, {leak} show what it denies"
    )
    assert found.leaks == []
    assert found.differences == []
    assert len(ready) >= FILES // 20, "a comparison of next to nothing"
