"""The verdicts over generated .htaccess files against Apache 2.4, which reads them, and nginx as it is configured for a
site, over the same document roots and with the same PHP.

Of every file the lines that block are taken out, and what is left is answered by nginx as by Apache, but for what each
site answers otherwise here: dotfiles, what is kept back of a WordPress, and names that no file has, which index.php is
asked for. `SVC_HTACCESS_FILES=10000` compares so many files, and a third as many with PHP, instead
of the few that each run has.
"""

from __future__ import annotations

import os
import random
from pathlib import PurePosixPath
from typing import Final

import pytest

from tests.support.figures import report_figure
from tests.support.htaccess_oracle import TOP, Case, Compared, compare, domain_of
from tests.support.nginx import FIRST, nginx_sites

pytestmark = [pytest.mark.system, pytest.mark.isolated]

FILES: Final = int(os.environ.get("SVC_HTACCESS_FILES", "150"))
AT_ONCE: Final = 500
"""Sites of one nginx and one Apache."""
SEED: Final = int(os.environ.get("SVC_HTACCESS_SEED", "20261125"))
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
    'RewriteEngine on\nRewriteRule "(^|/)\\.(?!well-known/)" - [F]',
    "RewriteEngine on\nRewriteRule ^\\.(git|env) - [F,L]",
    "RewriteEngine on\nRewriteRule ^moved$ /folder/ [R=301,L]",
    *("Redirect /a.txt /secret", "Redirect gone /secret", "RedirectMatch 403 secret", "Redirect 301 /gone /folder/"),
    *("RedirectMatch 301 ^/went\\.html$ /a.txt", "Redirect permanent /far.html https://example.org/x"),
    *("ErrorDocument 404 /a.txt", "ErrorDocument 404 https://example.org/", "ErrorDocument 403 refused"),
    *("DirectoryIndex index.html", "DirectoryIndex a.txt", "DirectoryIndex index.html index.htm"),
    *("DirectoryIndex index.htm", "DirectoryIndex index.php", "DirectoryIndex index.php index.html"),
    *("ExpiresActive on", 'ExpiresByType text/plain "access plus 1 day"', "FileETag None", "AddType text/plain .x"),
    *('Header set Cache-Control "max-age=60"', "Header unset ETag", "Header set X-Frame-Options SAMEORIGIN"),
    *("AddType text/javascript .mjs", "AddType text/plain .html", "AddType application/octet-stream .txt .css"),
    *("AddCharset utf-8 .html .txt", "AddDefaultCharset iso-8859-1", "SetOutputFilter INCLUDES"),
    *("AddDefaultCharset utf-8", "ServerSignature Off", "SetEnvIf Referer x bad", "Deny from env=bad"),
    *("<IfModule mod_php5.c>\nphp_flag engine off\n</IfModule>", "php_flag engine off"),
    *("# a comment", "# a comment \\", "Nonsense", "<Limit GET>\nDeny from all\n</Limit>", "Options -Indexes # none"),
)
WITH_PHP: Final = (
    *(
        '<Files "secret.php">\nRequire all denied\n</Files>',
        '<FilesMatch "\\.php$">\nRequire all denied\n</FilesMatch>',
    ),
    *(
        "<Files wp-config.php>\nDeny from all\n</Files>",
        "<Files xmlrpc.php>\nOrder deny,allow\nDeny from all\n</Files>",
    ),
    *("<Files readme.html>\nRequire all denied\n</Files>", '<Files "debug.log">\nRequire all denied\n</Files>'),
    "RewriteEngine on\nRewriteRule ^wp-includes/[^/]+\\.php$ - [F,L]",
    "RewriteEngine on\nRewriteRule ^wp-admin/includes/ - [F,L]",
    "RewriteEngine on\nRewriteRule ^wp-content/uploads/.*\\.php$ - [F]",
    "RewriteEngine on\nRewriteRule !^wp-includes/ - [S=1]",
    "RewriteEngine on\nRewriteRule .* - [E=HTTP_AUTHORIZATION:%{HTTP:Authorization}]",
    "RewriteCond %{REQUEST_FILENAME} -f [OR]\nRewriteCond %{REQUEST_FILENAME} -d\nRewriteRule ^ - [L]",
    "RewriteCond %{REQUEST_FILENAME} !-f [OR]\nRewriteCond %{REQUEST_FILENAME} !-d\nRewriteRule . /index.php [L]",
    "RewriteEngine on\nRewriteRule ^(.*)$ index.php [L]",
    "RewriteEngine on\nRewriteRule ^shop/(.*)$ secret.php?page=$1 [L]",
    "RewriteCond %{REQUEST_URI} !^/api\nRewriteCond %{REQUEST_FILENAME} !-f\nRewriteRule . /index.php [L]",
    *("FallbackResource /index.php", "AcceptPathInfo on", "AddHandler x-nothing .php", "SetHandler none"),
    *("RemoveHandler .php", "ForceType text/plain", "RewriteEngine off", "RewriteBase /"),
)
FRONT: Final = """
RewriteEngine on
RewriteCond %{REQUEST_FILENAME} !-f
RewriteCond %{REQUEST_FILENAME} !-d
RewriteRule . /index.php [L]
"""
CORPUS: Final = (
    "",
    "<Files .htaccess>\nOrder allow,deny\nDeny from all\n</Files>\nOptions -Indexes",
    "Order deny,allow\nOrder allow,deny",
    "Require all granted\nOrder allow,deny",
    '<FilesMatch "^\\.[^](]|secret">\nRequire all denied\n</FilesMatch>',
    "# x\\\r\r\nRequire all denied",
    "DirectoryIndex index.php",
)
STATIC: Final = ("a.txt", "secret", ".env", "index.html", "folder/index.html", "old/index.htm", ".well-known/a.txt")
PHP: Final = (
    *(
        "a.txt",
        "secret.php",
        ".env",
        "index.php",
        "folder/index.html",
        "both/index.php",
        "both/index.html",
        "readme.html",
    ),
    *("wp-config.php", "xmlrpc.php", "wp-admin/includes/file.php", "wp-includes/version.php", "debug.log"),
    *("wp-content/uploads/a.jpg", "wp-content/uploads/shell.php", "a/.well-known/b.txt"),
)
ADDRESSES: Final = (
    *("/%61.txt", "/A.TXT", "/linked.txt", "/folder/../secret", "/moved", "/gone", "/gone/x", "/gone2", "/went.html"),
    *("/went2html", "/far.html?x=1", "/shop/7", "/api/x"),
)
NO_FILE: Final = "RewriteCond %{REQUEST_FILENAME} !-f\nRewriteRule . /index.php"
OF_UPLOADS: Final = "RewriteRule ^wp-content/uploads/.*\\.php$ - [F]"
HERE: Final = {
    OF_UPLOADS: (r"^/wp-content/uploads/.*\.php/", f"{OF_UPLOADS}, for what is below such a file"),
    "Redirect 301 /gone /folder/": (r"^/gone/", "Redirect 301 /gone /folder/"),
    NO_FILE: (r"/$", "RewriteCond %{REQUEST_FILENAME} !-f without !-d, for folders that have no page"),
}
"""Of files that have this in them: the addresses that are answered otherwise, and the directive."""


def static() -> list[Case]:
    chosen = random.Random(SEED)
    texts = [*CORPUS, *("\n".join(chosen.sample(PIECES, chosen.randint(1, 4))) + "\n" for _ in range(FILES))]
    return [_case("static", STATIC, text) for text in texts]


def with_php() -> list[Case]:
    """Of sites whose pages are asked for by names that no file has."""
    chosen = random.Random(SEED + 1)
    pieces = (*PIECES, *WITH_PHP * 2)
    texts = ["\n".join(chosen.sample(pieces, chosen.randint(1, 4))) + FRONT for _ in range(FILES // 3)]
    return [_case(chosen.choice(("php", "wordpress")), PHP, text) for text in texts]


def _case(kind: str, files: tuple[str, ...], text: str) -> Case:
    differs = dict(found for piece, found in HERE.items() if piece in text)
    return Case(repr(text), kind, {TOP: text}, files, ADDRESSES, links={"linked.txt": "a.txt"}, differs=differs)


@pytest.mark.parametrize("kind", ["files alone", "PHP"])
async def test_lines_that_do_not_block_are_answered_as_apache_does_and_show_nothing_that_it_denies(kind: str) -> None:
    generated = static() if kind == "files alone" else with_php()
    found, ready = Compared(), 0
    for begin in range(0, len(generated), AT_ONCE):
        cases = []
        for place, case in enumerate(generated[begin : begin + AT_ONCE]):
            domain = domain_of(FIRST + place)
            told = case.translated(domain)
            ready += not told.blocking(domain)
            cases.append(told.without_what_blocks(domain))
        with nginx_sites() as nginx:
            await compare(nginx, cases, FIRST, found)

    report_figure(
        f".htaccess, {kind}: {ready} of {len(generated)} files block nothing; beside the lines that do not, {found}"
    )
    assert found.leaks == []
    assert found.unexplained == []
    assert len(found.owed_to_directives) <= found.answers // 100
    assert ready >= len(generated) // 20, "a comparison of next to nothing"


KEPT: Final = (
    "Require all denied",
    "<Files index.html>\nRequire all denied\n</Files>",
    '<FilesMatch "^secret">\nRequire all denied\n</FilesMatch>',
    "RewriteEngine on\nRewriteRule ^secret - [F]",
)


async def test_what_a_folder_keeps_is_not_open_by_a_link_that_leads_into_it() -> None:
    """Apache reads the file of where the link leads; a denied path is an address."""
    files = ("a.txt", "folder/secret", "folder/index.html", "folder/below/secret")
    urls = ("/way/", "/way/secret", "/way/index.html", "/deep/secret", "/all/folder/secret")
    texts = [{PurePosixPath("folder"): text} for text in KEPT]
    links: tuple[dict[str, str], ...] = ({}, {"way": "folder"}, {"deep": "folder/below"}, {"all": "."})
    cases = [Case(f"{text} {link}", "static", text, files, urls, links=link) for text in texts for link in links]
    told = [case.translated(domain_of(FIRST + place)) for place, case in enumerate(cases)]
    kept = [case.without_what_blocks(domain_of(FIRST + place)) for place, case in enumerate(told)]
    found = Compared()

    with nginx_sites() as nginx:
        await compare(nginx, kept, FIRST, found)

    assert found.leaks == []
    assert found.unexplained == []
    lasting = [case.links for place, case in enumerate(told) if not case.blocking(domain_of(FIRST + place))]
    assert {} in lasting
    assert all(not link for link in lasting)
