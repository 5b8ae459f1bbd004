"""Verdicts over directives as sites have them. What keeps visitors out is never taken for harmless."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc_webhost.apache.htaccess import parse
from svc_webhost.htaccess.judging import judge
from svc_webhost.htaccess.situation import Situation
from svc_webhost.htaccess.verdicts import HttpsForced, NameRedirected, PhpSet, Redirected, Verdict, Wish
from svc_webhost.php import PhpSettings

TOP = PurePosixPath(".")
WORDPRESS = Situation(TOP, php=True, wordpress=True, force_https=False)
PHP = Situation(TOP, php=True, wordpress=False, force_https=False)
SETTINGS = PhpSettings().model_dump(mode="json")
FILES = Situation(TOP, php=False, wordpress=False, force_https=False)

BLOCK_OF_WORDPRESS = """\
# BEGIN WordPress
<IfModule mod_rewrite.c>
RewriteEngine On
RewriteRule .* - [E=HTTP_AUTHORIZATION:%{HTTP:Authorization}]
RewriteBase /
RewriteRule ^index\\.php$ - [L]
RewriteCond %{REQUEST_FILENAME} !-f
RewriteCond %{REQUEST_FILENAME} !-d
RewriteRule . /index.php [L]
</IfModule>
# END WordPress
"""
TO_HTTPS = """\
RewriteCond %{HTTPS} off
RewriteRule ^(.*)$ https://%{HTTP_HOST}%{REQUEST_URI} [L,R=301]
"""


def verdicts(text: str, situation: Situation = PHP) -> list[str]:
    return [judged.opinion.verdict.value for judged in judge(parse(text), situation)]


def test_a_wordpress_as_it_is_installed_is_served_the_same() -> None:
    assert set(verdicts(BLOCK_OF_WORDPRESS, WORDPRESS)) <= {"same", "harmless"}


def test_a_front_controller_below_the_top_or_without_php_is_not() -> None:
    below = Situation(PurePosixPath("blog"), php=True, wordpress=True, force_https=False)

    assert "blocks" in verdicts(BLOCK_OF_WORDPRESS, below)
    assert "blocks" in verdicts(BLOCK_OF_WORDPRESS, FILES)


def test_https_is_the_same_where_the_site_forces_it() -> None:
    forced = Situation(TOP, php=True, wordpress=False, force_https=True)

    assert verdicts(TO_HTTPS, forced) == ["translated", "translated"]
    assert verdicts(TO_HTTPS) == ["blocks", "blocks"]


@pytest.mark.parametrize(
    "text",
    [
        "Require all denied",
        "Deny from all",
        "Order deny,allow\nDeny from all",
        "Order allow,deny",
        "Order deny,allow\nAllow from all\nDeny from 192.0.2.7",
        "Require all granted\nRequire ip 192.0.2.0/24",
        "Require not ip 192.0.2.7",
        "Satisfy any\nAllow from all\nRequire valid-user",
        "AuthType Basic\nAuthUserFile /home/x/.htpasswd\nRequire valid-user",
        '<Files "secret.txt">\nRequire all denied\n</Files>',
        '<FilesMatch "\\.(sql|log)$">\nRequire all denied\n</FilesMatch>',
        '<FilesMatch "^\\.ht|^secret">\nRequire all denied\n</FilesMatch>',
        '<FilesMatch "^\\.?secret">\nRequire all denied\n</FilesMatch>',
        '<FilesMatch "^(\\.)?secret">\nRequire all denied\n</FilesMatch>',
        '<FilesMatch "^(\\.env|secret)$">\nRequire all denied\n</FilesMatch>',
        '<Files "changes.html">\nDeny from all\n</Files>',
        "<Limit POST>\nRequire all granted\n</Limit>",
        "<IfModule !mod_authz_core.c>\nDeny from all\n</IfModule>",
        "RewriteRule ^private/ - [F]",
        "RewriteRule ^old$ - [G,L]",
        "RewriteRule ^x$ - [R=404]",
        "php_flag engine off",
        "RemoveHandler .php",
        "SetHandler none",
        "LimitRequestBody 10",
        "Order deny,allow\nOrder allow,deny",
        "Require all granted\nOrder allow,deny",
        "Options None",
        "Options -FollowSymLinks",
        '<FilesMatch "^\\.[^](]|secret">\nRequire all denied\n</FilesMatch>',
        '<FilesMatch "^\\.(?#()|secret">\nRequire all denied\n</FilesMatch>',
        '<FilesMatch "^\\.\\Q(\\E|secret">\nRequire all denied\n</FilesMatch>',
        "\x1c# Require all denied",
        "# x\\\r\r\nRequire all denied",
        "ErrorDocument 403 https://example.org/",
    ],
)
def test_what_keeps_visitors_out_blocks(text: str) -> None:
    for situation in (PHP, FILES, WORDPRESS):
        assert "blocks" in verdicts(text, situation)


@pytest.mark.parametrize(
    "text",
    [
        "Options -Indexes FollowSymLinks",
        "ExpiresByType image/png",
        "AddDefaultCharset utf-8 # of all",
        "RewriteEngine perhaps",
        "Header set Cache-Control",
        "ErrorDocument 404",
        "ErrorDocument 404 text here",
        '<Directory "/srv">\nOptions -Indexes\n</Directory>',
        "< IfModule mod_rewrite.c>\nRewriteEngine on\n</IfModule>",
        "<Files>\nOptions -Indexes\n</Files>",
    ],
)
def test_a_line_for_which_apache_refuses_the_whole_file_blocks(text: str) -> None:
    assert "blocks" in verdicts(text)


@pytest.mark.parametrize(
    ("text", "situation"),
    [
        ('<Files ".htaccess">\nOrder allow,deny\nDeny from all\n</Files>', PHP),
        ('<FilesMatch "^\\.ht">\nRequire all denied\n</FilesMatch>', PHP),
        ('<FilesMatch "^\\.(htaccess|git|env)">\nRequire all denied\n</FilesMatch>', FILES),
        ('<Files ~ "^\\.">\nDeny from all\n</Files>', FILES),
        ('<Files "wp-config.php">\nRequire all denied\n</Files>', WORDPRESS),
        ("<Files xmlrpc.php>\nOrder Deny,Allow\nDeny from all\n</Files>", WORDPRESS),
        ("Require all granted", PHP),
        ("Order allow,deny\nAllow from all", PHP),
        ("Options -Indexes +FollowSymLinks", FILES),
        ("DirectoryIndex index.php index.html index.htm", PHP),
        ("DirectoryIndex index.html index.htm", FILES),
        ("<Files readme.html>\nRequire all denied\n</Files>", WORDPRESS),
        ("RequestHeader unset Proxy", PHP),
        ('Header set X-Content-Type-Options "nosniff"', PHP),
        ("AddHandler application/x-httpd-ea-php82 .php .php", PHP),
        ("FallbackResource /index.php", PHP),
        ("Deny from all", Situation(PurePosixPath(".git"), php=True, wordpress=False, force_https=False)),
        ("php_flag engine off", Situation(PurePosixPath("wp-content/uploads"), True, True, False)),
        ("RedirectMatch 404 /\\.git", PHP),
        ("RewriteCond %{REQUEST_METHOD} ^TRAC[EK]\nRewriteRule .* - [L,R=405]", PHP),
        ("RewriteCond %{REQUEST_METHOD} ^(TRACE|TRACK)$\nRewriteRule .* - [F]", PHP),
        ("RedirectMatch 404 /\\.(?:git|svn|hg)/", PHP),
        ("RedirectMatch 403 ^/\\.env$", FILES),
        (
            "RewriteCond %{REQUEST_FILENAME} !-f\nRewriteCond %{REQUEST_FILENAME} !-d\n"
            "RewriteCond %{REQUEST_URI} !^/(favicon\\.ico|apple-touch-icon.*\\.png)$ [NC]\n"
            "RewriteRule (.+) index.php [L]",
            PHP,
        ),
        ("Deny from all", Situation(None, php=True, wordpress=False, force_https=False)),
    ],
)
def test_what_nginx_does_by_itself_is_the_same(text: str, situation: Situation) -> None:
    assert set(verdicts(text, situation)) == {"same"}


@pytest.mark.parametrize(
    "text",
    [
        "Options +Indexes",
        "Options ExecCGI",
        "DirectoryIndex home.php",
        "DirectoryIndex index.html index.php",
        "AddHandler application/x-httpd-php .html",
        "php_value memory_limit 512M",
        "RewriteRule ^shop/(.*)$ shop.php?page=$1 [L,QSA]",
        'Header set Content-Security-Policy "default-src https:"',
        "NoSuchDirective on",
        "SetEnv APP_ENV live",
        "RewriteCond %{HTTPS} off",
        "RedirectMatch 404 /\\.",
        "RedirectMatch 404 /\\.w",
        "RewriteCond %{REQUEST_METHOD} ^(TRACE|DELETE)\nRewriteRule .* - [F]",
        "RewriteCond %{REQUEST_METHOD} !^TRACE\nRewriteRule .* - [F]",
        "RewriteCond %{REQUEST_METHOD} ^TRACE [OR]\nRewriteCond %{REMOTE_ADDR} ^192\nRewriteRule .* - [F]",
        "RedirectMatch 404 /\\.git|/\\.w",
        "RedirectMatch 404 /\\.git|/secret",
        "RedirectMatch 404 \\.git",
        "RedirectMatch 301 /\\.git",
        "RedirectMatch 404 /\\.git /elsewhere",
        "RewriteCond %{REQUEST_FILENAME} !-f [OR]\nRewriteRule ^ index.php [L]",
        "RewriteCond %{REQUEST_FILENAME} !-f\nRewriteCond %{REQUEST_URI} !^/a$ [NC]\nRewriteRule ^ index.php [L]",
        "<IfModule mod_rewrite.c>",
        "</IfModule>",
        "<not a section",
    ],
)
def test_what_would_be_served_otherwise_blocks(text: str) -> None:
    assert set(verdicts(text)) == {"blocks"}


def test_caching_and_compression_are_harmless() -> None:
    text = "ExpiresActive on\nExpiresByType image/png A600\nAddOutputFilterByType DEFLATE text/html\n"
    text += 'Header set Cache-Control "max-age=600"\nFileETag None\nErrorDocument 404 /missing.html\n'

    assert set(verdicts(text)) == {"harmless"}


def test_a_redirect_is_translated_once_the_site_has_it() -> None:
    text = "Redirect 301 /old https://example.org/new/"
    redirect = Redirected("/old", "https://example.org/new", 301, below=True)
    has_it = Situation(TOP, True, False, False, (redirect,))
    exact = Situation(TOP, True, False, False, (Redirected("/old", "https://example.org/new", 301, below=False),))

    assert verdicts(text) == ["blocks"]
    assert verdicts(text, has_it) == ["translated"]
    assert verdicts(text, exact) == ["blocks"]


@pytest.mark.parametrize(
    ("words", "folders", "verdict"),
    [
        ("index.php", {"a": {"index.html"}}, "blocks"),
        ("index.php", {"a": {"index.php", "index.html"}}, "same"),
        ("index.php index.html", {"a": {"index.htm"}}, "blocks"),
        ("index.html index.php", {"a": {"index.html"}, "b": {"index.php"}}, "same"),
        ("index.html index.php", {"a": {"index.html", "index.php"}}, "blocks"),
        ("index.php", None, "blocks"),
        ("home.php", {}, "blocks"),
    ],
)
def test_the_pages_of_folders_are_the_same_where_no_folder_has_another(
    words: str, folders: dict[str, set[str]] | None, verdict: str
) -> None:
    indexes = None if folders is None else {PurePosixPath(name): frozenset(there) for name, there in folders.items()}
    situation = replace(PHP, indexes=indexes)

    assert verdicts(f"DirectoryIndex {words}", situation) == [verdict]


def wishes(text: str, situation: Situation) -> list[Wish]:
    return list(dict.fromkeys(wish for one in judge(parse(text), situation) for wish in one.opinion.wishes))


@pytest.mark.parametrize(
    ("text", "wished"),
    [
        ("Redirect 301 /a.html /b", [Redirected("/a.html", "/b", 301, below=False)]),
        (
            "Redirect /a https://example.org/b",
            [
                Redirected("/a", "https://example.org/b", 302, below=False),
                Redirected("/a/", "https://example.org/b", 302, below=True),
            ],
        ),
        ("RedirectMatch 301 ^/a\\.html$ /b", [Redirected("/a.html", "/b", 301, below=False)]),
        ("RewriteEngine on\nRewriteRule ^a$ /b [R=301,L]", [Redirected("/a", "/b", 301, below=False)]),
        ("RewriteEngine on\n" + TO_HTTPS, [HttpsForced()]),
        (
            "RewriteEngine on\nRewriteCond %{HTTP_HOST} ^www\\.shop\\.example$ [NC]\n"
            "RewriteRule ^(.*)$ https://shop.example/$1 [R=301,L]",
            [NameRedirected("www.shop.example")],
        ),
        (
            "php_value memory_limit 512M\nphp_value max_execution_time 120",
            [PhpSet("memory_limit_mib", 512), PhpSet("max_execution_time", 120)],
        ),
    ],
)
def test_what_the_panel_can_be_told_is_wished_for_and_translated_once_it_was(text: str, wished: list[Wish]) -> None:
    before = replace(PHP, domain="shop.example", names={"www.shop.example": False}, settings=SETTINGS)
    told = {wish.setting: wish.value for wish in wished if isinstance(wish, PhpSet)}
    after = replace(
        before,
        redirects=tuple(wish for wish in wished if isinstance(wish, Redirected)),
        force_https=HttpsForced() in wished,
        names={"www.shop.example": NameRedirected("www.shop.example") in wished},
        settings=SETTINGS | told,
    )

    assert wishes(text, before) == wished
    assert set(verdicts(text, after)) <= {"translated", "harmless"}
    assert "translated" in verdicts(text, after)


@pytest.mark.parametrize(
    ("value", "on"),
    [("On", True), ("on", True), ("1", True), ("Off", False), ("true", False), ("yes", False), ("2", False)],
)
def test_a_flag_of_php_is_on_by_the_two_words_that_apache_knows_for_it(value: str, on: bool) -> None:
    text = f"php_flag display_errors {value}"
    before = replace(PHP, settings=SETTINGS | {"display_errors": not on})
    after = replace(PHP, settings=SETTINGS | {"display_errors": on})

    assert wishes(text, before) == [PhpSet("display_errors", on)]
    assert verdicts(text, after) == ["translated"]


@pytest.mark.parametrize(
    "text",
    [
        "Redirect 301 / https://example.org/",
        "Redirect 301 /a /a/b",
        "Redirect 301 /.well-known/acme-challenge/x /b",
        "Redirect gone /a",
        "RedirectMatch 301 ^/a/(.*)$ /b/$1",
        "RewriteRule ^a$ /b [R=301,L]",
        "RewriteEngine on\nRewriteRule ^a - [L]\nRewriteRule ^a$ /b [R=301,L]",
        '<If "true">\nRedirect 301 /a.html /b\n</If>',
        "<IfModule mod_of_ours.c>\nRedirect 301 /a.html /b\n</IfModule>",
        "RewriteEngine on\nRewriteCond %{HTTP_HOST} ^other\\.test$\nRewriteRule ^(.*)$ https://shop.example/$1 [R=301]",
        "php_value memory_limit 9G",
        "php_value auto_prepend_file /x.php",
    ],
)
def test_what_the_panel_cannot_be_told_is_not_wished_for(text: str) -> None:
    situation = replace(PHP, domain="shop.example", names={"www.shop.example": False}, settings=SETTINGS)

    assert wishes(text, situation) == []
    assert "blocks" in verdicts(text, situation)


@pytest.mark.parametrize(
    "text",
    [
        "RewriteCond %{REQUEST_FILENAME} !-f [OR]\nRewriteCond %{REQUEST_FILENAME} !-d\nRewriteRule . /index.php [L]",
        "RewriteCond %{REQUEST_FILENAME} -f\nRewriteCond %{REQUEST_FILENAME} -d\nRewriteRule ^ - [L]\n"
        "RewriteRule ^ index.php [L]",
        "RewriteRule ^ index.php [L]",
        '<Files "a">\nRewriteRule ^ - [L]\n</Files>',
        "RewriteRule !^wp-includes/ - [S=3]\nRewriteRule ^wp-includes/[^/]+\\.php$ - [F]",
        "RewriteRule (^|/)\\. - [F]",
        "RewriteRule ^\\.?secret - [F]",
        "RewriteRule (^|/)\\.(git|env)|secret - [F]",
        "RewriteRule ^\\.(gitx|well-known) - [F]",
        "RewriteRule ^\\.(git)?well-known - [F]",
        "RewriteRule ^\\.git?|well-known - [F]",
    ],
)
def test_a_rule_that_only_looks_like_a_known_one_blocks(text: str) -> None:
    assert "blocks" in verdicts(text, WORDPRESS)


@pytest.mark.parametrize(
    "pattern",
    [r"^\.(git|env)", r'"(^|/)\.(?!well-known/)"', r'"/\.|^\.(?!well-known/)"', r"(?:^|/)\.git(/|$)", r"/\.ht"],
)
def test_rules_that_deny_what_is_hidden_are_the_same(pattern: str) -> None:
    assert verdicts(f"RewriteRule {pattern} - [F,L]") == ["same"]


def test_what_is_no_program_of_php_is_denied_among_what_is_uploaded_only_as_far_as_nginx_denies_it() -> None:
    uploads = replace(WORDPRESS, folder=PurePosixPath("wp-content/uploads"))

    assert verdicts("AddHandler cgi-script .php .phtml .pl .sh .htm", uploads) == ["same"]
    assert verdicts("AddHandler cgi-script .php .svg", uploads) == ["blocks"]
    assert verdicts("SetHandler none", uploads) == ["same"]


def test_a_front_controller_of_folders_too_is_the_same_where_no_folder_has_a_page_of_its_own() -> None:
    text = "RewriteCond %{REQUEST_FILENAME} !-f\nRewriteRule ^ index.php [L]"
    alone = replace(PHP, indexes={TOP: frozenset({"index.php"})})
    beside = replace(PHP, indexes={TOP: frozenset({"index.php"}), TOP / "papers": frozenset({"index.html"})})

    assert set(verdicts(text, alone)) == {"same"}
    assert set(verdicts(text, beside)) == {"blocks"}
    assert set(verdicts(text)) == {"blocks"}


def test_lines_are_told_as_they_are_numbered_also_behind_continued_ones() -> None:
    found = parse('# comment\nOptions \\\n  -Indexes\n\nHeader set X "a b"\r\n')

    assert [(one.line, one.name, one.arguments) for one in found] == [
        (2, "options", ("-Indexes",)),
        (5, "header", ("set", "X", "a b")),
    ]


LINES = st.lists(
    st.sampled_from(
        [
            *("Require all denied", "Deny from all", "AuthType Basic", "Require valid-user", "RewriteRule ^a - [F]"),
            *("Require all granted", "Allow from all", "Order deny,allow", "Order allow,deny", "Satisfy any"),
            *("RewriteEngine on", "RewriteCond %{REQUEST_FILENAME} !-f", "RewriteRule . /index.php [L]"),
            *("<IfModule a>", "</IfModule>", "<Files x>", "</Files>", "<RequireAny>", "</RequireAny>"),
            *("Options -Indexes", "ExpiresActive on", "\\", "# x", "<", '"', "Header", "Redirect", "php_flag"),
        ]
    )
    | st.text(max_size=40),
    max_size=12,
)
DENIALS = ("Require all denied", "Deny from all", "AuthType Basic", "Require valid-user", "RewriteRule ^a - [F]")


@given(LINES)
def test_whatever_else_is_in_a_file_a_denial_blocks_and_nothing_is_without_a_verdict(lines: list[str]) -> None:
    directives = parse("\n".join(lines))
    judged = judge(directives, PHP)

    assert len(judged) == len(directives)
    for one in judged:
        if one.directive.text in DENIALS:
            assert one.opinion.verdict is Verdict.BLOCKS
