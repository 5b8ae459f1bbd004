"""Folders of uploads whose .htaccess files keep programs from being run: the site denies such names there.

The lines are those of products: Wordfence, Sucuri, Drupal's FileSecurity, magento/magento2 pub/media/.htaccess,
wikimedia/mediawiki images/.htaccess, phpBB and habits from guides of hosts.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final

import pytest

from svc_webhost.accepted import is_denied
from svc_webhost.apache.htaccess import parse
from svc_webhost.file_types import PAGES
from svc_webhost.htaccess.judging import judge
from svc_webhost.htaccess.situation import Situation
from svc_webhost.htaccess.verdicts import Denied, Verdict

SITE: Final = Situation(PurePosixPath("media"), php=True, wordpress=False, force_https=False, indexes={})
TOP: Final = replace(SITE, folder=PurePosixPath("."))
PHP: Final = ["/media/**/*.php"]
DRUPAL: Final = """\
Options -Indexes -ExecCGI -Includes -MultiViews
SetHandler Drupal_Security_Do_Not_Remove_See_SA_2006_006
<Files *>
  SetHandler Drupal_Security_Do_Not_Remove_See_SA_2013_003
</Files>
<IfModule mod_php.c>
  php_flag engine off
</IfModule>
"""
WORDFENCE: Final = """\
<IfModule mod_php7.c>
php_flag engine 0
</IfModule>
AddHandler cgi-script .php .phtml .php3 .pl .py .jsp .asp .htm .shtml .sh .cgi
Options -ExecCGI
"""
CGI: Final = ["asp", "cgi", "htm", "jsp", "php", "pl", "py", "sh", "shtml"]
MAGENTO: Final = """\
Options -Indexes
AddHandler cgi-script .php .pl .py .jsp .asp .htm .shtml .sh .cgi
Options -ExecCGI
<FilesMatch ".+\\.(ph(p[3457]?|t|tml)|[aj]sp|p[ly]|sh|cgi|shtml?|html?)$">
SetHandler default-handler
</FilesMatch>
AddType image/svg+xml svg
AddType text/css css
"""
SUCURI: Final = """\
<FilesMatch "\\.(?i:php)$">
  <IfModule !mod_authz_core.c>
    Order allow,deny
    Deny from all
  </IfModule>
  <IfModule mod_authz_core.c>
    Require all denied
  </IfModule>
</FilesMatch>
"""
PICTURES: Final = """\
<FilesMatch "\\.php$">
  Order Allow,Deny
  Deny from all
</FilesMatch>
<FilesMatch "\\.(jpg|jpeg|png|gif)$">
  Order Deny,Allow
  Allow from all
</FilesMatch>
"""
MEDIAWIKI: Final = """\
AddType text/plain .html .htm .shtml .php .phtml .php5
RemoveHandler .php
<FilesMatch "\\.ph(p[345]?s?|tml)$">
   SetHandler None
</FilesMatch>
"""


def wished(text: str, situation: Situation = SITE) -> list[str]:
    wishes = [wish for one in judge(parse(text), situation) for wish in one.opinion.wishes]
    return [wish.pattern for wish in dict.fromkeys(wishes) if isinstance(wish, Denied)]


def blocking(text: str, situation: Situation) -> list[str]:
    judged = judge(parse(text), situation)
    return [one.directive.text for one in judged if one.opinion.verdict is Verdict.BLOCKS]


@pytest.mark.parametrize(
    ("text", "patterns"),
    [
        ("php_flag engine off", PHP),
        ("php_flag engine 0", PHP),
        ("php_flag engine false", PHP),
        ("<IfModule mod_php5.c>\nphp_flag engine off\n</IfModule>", PHP),
        ("RemoveHandler .php .phtml .php3", PHP),
        ("RemoveType .php", PHP),
        ("SetHandler none", PHP),
        ("SetHandler default-handler", PHP),
        ("AddHandler default-handler .php", PHP),
        ("AddType text/plain .php .php3 .phtml", PHP),
        ("AddType application/x-httpd-php-source .php", PHP),
        ("AddType application/octet-stream php", PHP),
        (
            '<FilesMatch "\\.(php|phtml|php[3-5])$">\nRequire all denied\n</FilesMatch>',
            [f"/media/**/*.{each}" for each in ("php", "phtml", "php3", "php4", "php5")],
        ),
        ('<FilesMatch "(?i)\\.php[3-7]?$">\nSetHandler none\n</FilesMatch>', PHP),
        ('<Files "*.php">\nDeny from all\n</Files>', PHP),
        ('<Files "upload.php">\nphp_flag engine off\n</Files>', ["/media/**/upload.php"]),
        ("AddType text/plain .html .txt", ["/media/**/*.html"]),
        (
            "ForceType application/octet-stream",
            [f"/media/**/*.{each}" for each in sorted({*PAGES, "php"})],
        ),
        (DRUPAL, PHP),
        (SUCURI, PHP),
        (PICTURES, PHP),
    ],
)
def test_what_is_not_run_there_is_denied(text: str, patterns: list[str]) -> None:
    found = wished(text)
    assert found == patterns

    assert blocking(text, replace(SITE, denied=frozenset(found))) == []


def test_what_is_a_program_of_no_kind_is_denied_where_apache_denies_it() -> None:
    for text in (WORDFENCE, MAGENTO):
        found = wished(text)

        for ending in CGI:
            assert any(is_denied(each, f"/media/a/x.{ending}") for each in found), ending
        assert not any(is_denied(each, "/media/a/x.jpg") for each in found)
        assert blocking(text, replace(SITE, denied=frozenset(found))) == []


def test_pages_among_uploads_that_are_sent_as_text_are_denied() -> None:
    found = wished(MEDIAWIKI)

    assert all(any(is_denied(each, f"/media/x.{end}") for each in found) for end in ("html", "htm", "shtml", "php"))
    assert blocking(MEDIAWIKI, replace(SITE, denied=frozenset(found))) == []


def test_a_folder_above_that_runs_no_programs_is_enough() -> None:
    inner = replace(SITE, folder=PurePosixPath("media/tmp/x"))

    assert blocking("php_flag engine off", replace(inner, denied=frozenset(PHP))) == []
    assert blocking("php_flag engine off", replace(inner, denied=frozenset({"*.php"}))) == []
    assert blocking("php_flag engine off", replace(inner, denied=frozenset({"/media/tmp/"}))) == []
    assert blocking("php_flag engine off", replace(inner, denied=frozenset({"/other/**/*.php"}))) != []


@pytest.mark.parametrize(
    "text",
    [
        "php_flag engine off",
        "RemoveHandler .php",
        "SetHandler none",
        "AddType text/plain .php",
        "AddType text/plain .html",
        "ForceType text/plain",
    ],
)
def test_a_whole_site_without_programs_is_left_to_its_owner(text: str) -> None:
    assert blocking(text, TOP) == [text]
    assert wished(text, TOP) == []


@pytest.mark.parametrize(
    "text",
    [
        "SetHandler server-status",
        "php_admin_flag engine off",
        "SetHandler cgi-script",
        '<FilesMatch "^(?!index)">\nSetHandler none\n</FilesMatch>',
        '<FilesMatch "\\.(?i:sql)$">\nRequire all denied\n</FilesMatch>',
        "ForceType text/html",
        "php_flag engine on",
    ],
)
def test_what_is_not_known_blocks_and_is_not_wished_for(text: str) -> None:
    assert blocking(text, SITE) != []
    assert wished(text) == []


def test_a_link_past_the_folder_blocks() -> None:
    linked = replace(SITE, around="public/files")

    assert blocking("php_flag engine off", linked) == ["php_flag engine off"]
    assert wished("php_flag engine off", linked) == []


def test_what_runs_php_is_no_denial() -> None:
    for text in ("AddHandler application/x-httpd-php82 .php", "AddType application/x-httpd-php .php .phtml"):
        assert blocking(text, TOP) == [] == wished(text, TOP)


def test_programs_are_not_denied_where_a_folder_has_an_index_page_besides() -> None:
    pages = {PurePosixPath("media/a"): frozenset({"index.php", "index.html"})}
    text = '<FilesMatch "\\.php$">\nRequire all denied\n</FilesMatch>'

    assert wished(text, replace(SITE, indexes=pages)) == []
    assert wished(text, replace(SITE, indexes={PurePosixPath("media/a"): frozenset({"index.php"})})) == PHP
