"""Rewrite rules that are front controllers of the site, and those that only look like one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from svc_webhost.accepted import is_denied
from svc_webhost.apache.htaccess import parse
from svc_webhost.htaccess.judging import judge
from svc_webhost.htaccess.situation import Situation
from svc_webhost.htaccess.verdicts import Denied, Fronted, Verdict, Wish

TOP = Situation(PurePosixPath("."), php=True, wordpress=False, force_https=False, indexes={})
BLOG = replace(TOP, folder=PurePosixPath("blog"))
ON = "RewriteEngine on\n"
NO_FILE = "RewriteCond %{REQUEST_FILENAME} !-f\nRewriteCond %{REQUEST_FILENAME} !-d\n"


def wishes(text: str, situation: Situation = TOP) -> list[Wish]:
    judged = judge(parse(text), situation)
    return list(dict.fromkeys(wish for one in judged for wish in one.opinion.wishes))


@pytest.mark.parametrize(
    ("text", "situation", "wanted"),
    [
        (f"{NO_FILE}RewriteRule . /blog/index.php [L]", BLOG, Fronted("/blog/", "/blog/index.php", False, None, True)),
        (f"{NO_FILE}RewriteRule ^ index.php [L]", BLOG, Fronted("/blog/", "/blog/index.php", False, None, True)),
        (f"{NO_FILE}RewriteRule ^(.*)$ app.php [L]", TOP, Fronted("/", "/app.php", False, None, True)),
        (f"{NO_FILE}RewriteRule ^(.*)$ index.php/$1 [L]", TOP, Fronted("/", "/index.php", True, None, True)),
        (f"{NO_FILE}RewriteRule (.*) doku.php?id=$1 [QSA,L]", TOP, Fronted("/", "/doku.php", False, "id", True)),
        ("RewriteRule ^site/(.*) index.php [L]", TOP, Fronted("/site/", "/index.php", False, None, False)),
        ("RewriteRule ^_media/(.*) get.php?m=$1 [QSA,L]", TOP, Fronted("/_media/", "/get.php", False, "m", False)),
        ("RewriteRule ^/?wiki(/.*)?$ /w/index.php [L]", TOP, Fronted("/wiki", "/w/index.php", False, None, False)),
        (
            f"RewriteCond %{{REQUEST_URI}} ^/api/\n{NO_FILE}RewriteRule .* api/index.php [L]",
            TOP,
            Fronted("/api/", "/api/index.php", False, None, True),
        ),
    ],
)
def test_a_rule_for_one_script_is_a_front_controller(text: str, situation: Situation, wanted: Fronted) -> None:
    assert wishes(ON + text, situation) == [wanted]

    told = replace(situation, fronts=frozenset({wanted}))
    assert {one.opinion.verdict for one in judge(parse(ON + text), told)} <= {Verdict.TRANSLATED, Verdict.HARMLESS}


@pytest.mark.parametrize(
    "text",
    [
        f"{NO_FILE}RewriteRule ^([^/]+)/(.*)$ doku.php?do=$1&id=$2 [QSA,L]",
        f"{NO_FILE}RewriteRule (.*) doku.php?id=$1 [L]",
        f"{NO_FILE}RewriteRule ^(.*)$ app.php",
        f"RewriteCond %{{HTTP_HOST}} ^a\\.test$\n{NO_FILE}RewriteRule ^(.*)$ app.php [L]",
        "RewriteCond %{REQUEST_FILENAME} !-f [OR]\nRewriteCond %{REQUEST_FILENAME} !-d\nRewriteRule ^ app.php [L]",
        "RewriteRule ^(.*)$ app.php [L]",
        "RewriteRule ^api/(.*)$ api/index.php [L]",
        "RewriteRule ^Api/(.*)$ app.php [L,NC]",
        "RewriteRule ^api app.php [L]",
        "RewriteRule ^a/(.*) /.hidden/x.php [L]",
        f'<If "true">\n{NO_FILE}RewriteRule ^ app.php [L]\n</If>',
    ],
)
def test_a_rule_that_does_more_or_less_blocks(text: str) -> None:
    assert wishes(ON + text) == []
    assert Verdict.BLOCKS in {one.opinion.verdict for one in judge(parse(ON + text), TOP)}


def test_without_an_engine_nothing_is_led() -> None:
    assert wishes(f"{NO_FILE}RewriteRule ^ app.php [L]") == []


def test_what_an_earlier_rule_leads_elsewhere_is_not_led_again() -> None:
    general, inner = f"{NO_FILE}RewriteRule ^ app.php [L]\n", f"{NO_FILE}RewriteRule ^api/ api.php [L]\n"

    assert [wish for wish in wishes(ON + general + inner) if isinstance(wish, Fronted)] == [
        Fronted("/", "/app.php", False, None, True)
    ]
    assert len(wishes(ON + inner + general)) == 2


def test_index_php_at_the_top_is_no_longer_the_same_where_another_script_answers() -> None:
    told = replace(TOP, fronts=frozenset({Fronted("/", "/app.php", False, None, True)}))

    assert Verdict.BLOCKS in {
        one.opinion.verdict for one in judge(parse(f"{ON}{NO_FILE}RewriteRule ^ index.php"), told)
    }


def test_behind_a_front_controller_no_page_is_denied() -> None:
    front = f"{ON}{NO_FILE}RewriteRule ^ index.php [L]\n"

    assert wishes(f"{front}RewriteRule ^(logs|cache)/ - [F]") == [Denied("/logs/"), Denied("/cache/")]
    assert wishes(f"{front}RewriteRule ^user/(.*)\\.(md|yaml)$ - [F]") == [
        Denied("/user/**/*.md"),
        Denied("/user/**/*.yaml"),
    ]
    assert wishes(f"{front}RewriteRule ^config - [F]") == []


PICTURES = """
<IfModule mod_authz_core.c>
Require all denied
<Files ~ "(?i)^.*\\.(jpg|png)$">
Require all granted
</Files>
</IfModule>
"""


def test_a_folder_that_shows_pictures_only_is_denied_but_for_them() -> None:
    folder = replace(TOP, folder=PurePosixPath("img"))

    assert wishes(PICTURES, folder) == [Denied("/img/**/!(*.jpg|*.JPG|*.png|*.PNG)")]
    assert wishes(PICTURES.replace("(?i)", ""), folder) == [Denied("/img/**/!(*.jpg|*.png)")]


AKISMET = """
<IfModule !mod_authz_core.c>
	Order Deny,Allow
	Deny from all
</IfModule>
<IfModule mod_authz_core.c>
	Require all denied
</IfModule>
<FilesMatch "^(form\\.js|akismet\\.css)$">
	<IfModule !mod_authz_core.c>
		Allow from all
	</IfModule>
	<IfModule mod_authz_core.c>
		Require all granted
	</IfModule>
</FilesMatch>
<FilesMatch "^logo-(a|full)-2x\\.png$">
	<IfModule !mod_authz_core.c>
		Allow from all
	</IfModule>
	<IfModule mod_authz_core.c>
		Require all granted
	</IfModule>
</FilesMatch>
"""
"""As the plugin has it that every WordPress comes with."""


def test_a_folder_that_shows_some_files_by_name_is_denied_but_for_them() -> None:
    folder = replace(TOP, folder=PurePosixPath("wp-content/plugins/akismet"), wordpress=True)
    pattern = "/wp-content/plugins/akismet/**/!(form.js|akismet.css|logo-a-2x.png|logo-full-2x.png)"

    assert wishes(AKISMET, folder) == [Denied(pattern)]
    told = replace(folder, denied=frozenset({pattern}))
    assert Verdict.BLOCKS not in {one.opinion.verdict for one in judge(parse(AKISMET), told)}
    assert wishes(AKISMET.replace("form\\.js", "form\\.php"), folder) != [Denied(pattern)]
    for path, denied in {
        "class.akismet.php": True,
        "": True,
        "form.js": False,
        "_inc/form.js": False,
        "xform.js": True,
        "form.js/x": True,
        "x.php/form.js": True,
        "_inc/img/logo-a-2x.png": False,
    }.items():
        assert is_denied(pattern, f"/wp-content/plugins/akismet/{path}") is denied, path


@pytest.mark.parametrize(
    "changed",
    [
        ("(jpg|png)", "(jpg|php)"),
        ("jpg|png", "jpg|[a-z]+"),
        ("Require all granted", "Require ip 192.0.2.1"),
        ("Require all denied", "Require all granted"),
    ],
)
def test_a_folder_that_shows_something_else_too_is_not(changed: tuple[str, str]) -> None:
    folder = replace(TOP, folder=PurePosixPath("img"))

    assert not any(
        "!(" in wish.pattern for wish in wishes(PICTURES.replace(*changed), folder) if isinstance(wish, Denied)
    )
