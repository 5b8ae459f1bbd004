"""Rules of single-page applications, as documentation has them and as they are in public repositories."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from svc_webhost.apache.htaccess import parse
from svc_webhost.htaccess.judging import judge
from svc_webhost.htaccess.situation import TOP, Situation
from svc_webhost.htaccess.verdicts import FallbackPage, Wish

PHP = Situation(TOP, php=True, wordpress=False, force_https=False, indexes={TOP: frozenset({"index.html"})})
FILES = replace(PHP, php=False)
WORDPRESS = replace(PHP, wordpress=True)

VUE = """\
<IfModule mod_negotiation.c>
  Options -MultiViews
</IfModule>
<IfModule mod_rewrite.c>
  RewriteEngine On
  RewriteBase /
  RewriteRule ^index\\.html$ - [L]
  RewriteCond %{REQUEST_FILENAME} !-f
  RewriteCond %{REQUEST_FILENAME} !-d
  RewriteRule . /index.html [L]
</IfModule>
"""
REACT = """\
Options -MultiViews
RewriteEngine On
RewriteCond %{REQUEST_FILENAME} !-f
RewriteRule ^ index.html [QSA,L]
"""
ANGULAR = """\
RewriteEngine On
RewriteCond %{DOCUMENT_ROOT}%{REQUEST_URI} -f [OR]
RewriteCond %{DOCUMENT_ROOT}%{REQUEST_URI} -d
RewriteRule ^ - [L]
RewriteRule ^ /index.html
"""
ROUTERS = """\
RewriteEngine on
RewriteCond %{REQUEST_FILENAME} -s [OR]
RewriteCond %{REQUEST_FILENAME} -l [OR]
RewriteCond %{REQUEST_FILENAME} -d
RewriteRule ^.*$ - [NC,L]
RewriteRule ^(.*) index.html [NC,L]
"""
ANGULAR_JS = """\
RewriteEngine On
RewriteBase /
RewriteCond %{REQUEST_FILENAME} !-f
RewriteCond %{REQUEST_FILENAME} !-d
RewriteCond %{REQUEST_URI} !index
RewriteRule (.*) /index.html [L,QSA]
"""
WITHOUT_LINKS = """\
RewriteEngine On
RewriteCond %{REQUEST_FILENAME} !-f
RewriteCond %{REQUEST_FILENAME} !-d
RewriteCond %{REQUEST_FILENAME} !-l
RewriteCond %{REQUEST_URI} !\\.(js|css|png|jpg|svg)$ [NC]
RewriteRule ^(.*)$ /index.html [L]
"""
FALLBACK = "FallbackResource /index.html\n"
NOT_FOUND = "ErrorDocument 404 /index.html\n"


def verdicts(text: str, situation: Situation) -> set[str]:
    return {one.opinion.verdict.value for one in judge(parse(text), situation)}


def wishes(text: str, situation: Situation) -> list[Wish]:
    return list(dict.fromkeys(wish for one in judge(parse(text), situation) for wish in one.opinion.wishes))


@pytest.mark.parametrize("situation", [FILES, PHP], ids=["files", "PHP"])
@pytest.mark.parametrize(
    "text",
    [VUE, REACT, ANGULAR, ROUTERS, ANGULAR_JS, WITHOUT_LINKS, FALLBACK, NOT_FOUND],
    ids=["Vue", "React", "Angular", "routers", "AngularJS", "without links", "FallbackResource", "ErrorDocument"],
)
def test_the_rule_of_an_application_is_translated_into_the_fallback_page(text: str, situation: Situation) -> None:
    told = replace(situation, fallback_page="/index.html")

    assert wishes(text, situation) == [FallbackPage("/index.html")]
    assert verdicts(text, told) <= {"translated", "same", "harmless"}
    assert "translated" in verdicts(text, told)


def test_another_page_may_answer() -> None:
    text = REACT.replace("index.html", "/200.html")

    assert wishes(text, FILES) == [FallbackPage("/200.html")]
    assert "blocks" in verdicts(text, replace(FILES, fallback_page="/index.html"))
    assert wishes(text, replace(FILES, fallback_page="/index.html")) == []


@pytest.mark.parametrize(
    ("text", "situation"),
    [
        (VUE, WORDPRESS),
        (VUE, replace(FILES, folder=PurePosixPath("app"))),
        (FALLBACK, replace(FILES, folder=PurePosixPath("app"))),
        (FALLBACK, WORDPRESS),
        ("FallbackResource index.html", FILES),
        ("FallbackResource /app.php", FILES),
        ("<Files a>\nFallbackResource /index.html\n</Files>", FILES),
        (VUE.replace("RewriteEngine On", ""), FILES),
        (VUE.replace("RewriteBase /", "RewriteBase /app/").replace("/index.html", "index.html"), FILES),
        (VUE.replace("/index.html", "https://app.example/index.html"), FILES),
        (VUE.replace("/index.html", "/.hidden/index.html"), FILES),
        (VUE.replace("/index.html", "/$1/index.html"), FILES),
        (VUE.replace("[L]\n</", "[R=302,L]\n</"), FILES),
        (VUE.replace("RewriteCond %{REQUEST_FILENAME} !-f", ""), FILES),
        (VUE.replace("RewriteCond", "RewriteCond %{REQUEST_URI} !^/api/\nRewriteCond", 1), FILES),
        (VUE.replace("RewriteCond", "RewriteCond %{REQUEST_URI} !\\.(js|html)$\nRewriteCond", 1), FILES),
        ("RewriteEngine On\nRewriteRule ^api/(.*)$ http://127.0.0.1:3000/$1 [P,L]\n" + VUE, FILES),
        (
            REACT,
            replace(FILES, indexes={TOP: frozenset({"index.html"}), PurePosixPath("b"): frozenset({"index.html"})}),
        ),
        (REACT, replace(FILES, indexes=None)),
    ],
)
def test_a_rule_that_does_something_else_is_not(text: str, situation: Situation) -> None:
    assert wishes(text, situation) == []
    assert "blocks" in verdicts(text, situation)


@pytest.mark.parametrize("text", ["ErrorDocument 404 /404.html", "ErrorDocument 403 /index.html"])
def test_a_page_for_errors_is_no_application(text: str) -> None:
    assert verdicts(text, FILES) == {"harmless"}
    assert verdicts(NOT_FOUND, WORDPRESS) == {"harmless"}


def test_a_front_controller_blocks_on_a_site_whose_missing_paths_have_a_page() -> None:
    text = VUE.replace("index\\.html", "index\\.php").replace("/index.html", "/index.php")

    assert "blocks" not in verdicts(text, PHP)
    assert "blocks" in verdicts(text, replace(PHP, fallback_page="/index.html"))
    assert "blocks" in verdicts("FallbackResource /index.php", replace(PHP, fallback_page="/index.html"))


def test_a_denial_behind_the_rule_of_an_application_is_not_wished_for() -> None:
    """The rule has sent paths without a file to the page, so the denial is about existing files alone."""
    denial = "RewriteRule ^private/ - [F]\n"

    assert wishes(f"{REACT}{denial}", FILES) == [FallbackPage("/index.html")]
    assert len(wishes(f"RewriteEngine On\n{denial}{REACT}", FILES)) == 2
