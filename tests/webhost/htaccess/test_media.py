"""Types, character sets, filters and caches: judged by what nginx answers here.

The lines are as files in public repositories have them: HTML5 Boilerplate, plugins of WordPress, guides of hosts.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from svc_webhost.apache.htaccess import parse
from svc_webhost.file_types import PAGES, TYPES, type_of
from svc_webhost.htaccess.judging import judge
from svc_webhost.htaccess.situation import TOP, Situation
from svc_webhost.htaccess.verdicts import Denied, Utf8Pages, Wish

PHP = Situation(TOP, php=True, wordpress=False, force_https=False)
FILES = replace(PHP, php=False)
UPLOADS = replace(PHP, folder=PurePosixPath("uploads"))


def verdict(text: str, situation: Situation = PHP) -> str:
    [found] = {one.opinion.verdict.value for one in judge(parse(text), situation)}
    return found


def wishes(text: str, situation: Situation = PHP) -> list[Wish]:
    return [wish for one in judge(parse(text), situation) for wish in one.opinion.wishes]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        # As nginx says it here.
        ("AddType text/css .css", "same"),
        ("AddType image/svg+xml svg svgz", "same"),
        ("AddType font/woff2 .woff2", "same"),
        ("AddType application/wasm .wasm", "same"),
        ("AddType text/markdown md markdown", "same"),
        ("AddType IMAGE/WebP .WEBP", "same"),
        ("AddType text/html .shtml .html", "same"),
        ("AddType 'text/css; charset=utf-8' .css", "same"),
        # No browser treats them differently.
        ("AddType text/javascript .mjs .js", "harmless"),
        ("AddType application/x-javascript .js", "harmless"),
        ("AddType application/xml xml", "harmless"),
        ("AddType application/font-woff .woff", "harmless"),
        ("AddType application/x-font-ttf .ttf", "harmless"),
        ("AddType image/jpg .jpg", "harmless"),
        ("AddType audio/mp4 f4a f4b m4a", "harmless"),
        ("AddType application/x-gzip .gz .tgz", "harmless"),
        ("AddType application/x-msdownload .exe", "harmless"),
        ("AddType application/nix-package .nixpkg", "harmless"),
        ("AddType text/plain .pl .py .sh .cgi", "harmless"),
        # Visitors would get something else.
        ("AddType text/html .page", "blocks"),
        ("AddType text/plain .sha256", "blocks"),
        ("AddType text/plain .js", "blocks"),
        ("AddType application/octet-stream .pdf .txt", "blocks"),
        ("AddType application/octet-stream .ts", "blocks"),
        ("AddType application/force-download .mp3", "blocks"),
        ("AddType text/html .txt", "blocks"),
        ("AddType text/css .css .page", "blocks"),
        ("AddType text/xml .rss", "blocks"),
        ("AddType 'text/css; charset=windows-1252' .css", "blocks"),
        ("AddType 'text/css; level=1' .css", "blocks"),
        ("AddType application/x-httpd-cgi .cgi", "blocks"),
        ("AddType text/x-server-parsed-html .html", "blocks"),
        ("AddType text/css", "blocks"),
    ],
)
def test_a_type_is_judged_by_what_nginx_answers(line: str, expected: str) -> None:
    assert verdict(line) == expected
    assert verdict(line, FILES) == expected


def test_pages_among_uploads_that_are_sent_as_text_are_denied_or_block() -> None:
    protection = "AddType text/plain .html .htm .shtml .svg .xml"
    denied = [f"/uploads/**/*.{ending}" for ending in ("htm", "html", "shtml", "svg", "xml")]

    assert wishes(protection, UPLOADS) == [Denied(each) for each in denied]
    assert verdict(protection, replace(UPLOADS, denied=frozenset(denied))) == "translated"
    assert verdict(protection) == "blocks"
    assert wishes(f"{protection} .page", UPLOADS) == []
    assert verdict(f"{protection} .page", replace(UPLOADS, denied=frozenset(denied))) == "blocks"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('<FilesMatch "\\.pdf$">\nForceType application/octet-stream\n</FilesMatch>', "blocks"),
        ('<FilesMatch "\\.(mp3|mp4)$">\nForceType application/octet-stream\n</FilesMatch>', "blocks"),
        ('<FilesMatch "\\.txt$">\nForceType text/html\n</FilesMatch>', "blocks"),
        ('<FilesMatch "\\.zip$">\nForceType application/octet-stream\n</FilesMatch>', "harmless"),
        ('<FilesMatch "\\.woff2$">\nForceType font/woff2\n</FilesMatch>', "same"),
        ('<Files "*.mjs">\nForceType text/javascript\n</Files>', "harmless"),
    ],
)
def test_a_type_that_is_forced_on_some_files_is_judged_like_any_other(text: str, expected: str) -> None:
    assert verdict(text, UPLOADS) == expected
    assert wishes(text, UPLOADS) == []


def test_pages_that_are_forced_to_be_text_are_denied() -> None:
    text = '<FilesMatch "\\.(html|txt)$">\nForceType text/plain\n</FilesMatch>'

    assert wishes(text, UPLOADS) == [Denied("/uploads/**/*.html")]
    assert verdict(text, replace(UPLOADS, denied=frozenset({"/uploads/**/*.html"}))) == "translated"


def test_whatever_browsers_show_as_a_page_is_known_to_be_one() -> None:
    endings = [ending for each in TYPES.values() for ending in each.split()]

    assert {"html", "htm", "shtml", "xhtml", "svg", "svgz", "xml", "xsl", "rss", "atom"} <= PAGES
    assert not {"txt", "json", "js", "png", "pdf", "webmanifest"} & PAGES
    assert type_of("mjs") == "application/javascript"
    assert type_of("page") == "application/octet-stream"
    assert len(endings) == len(set(endings))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("AddDefaultCharset Off", "same"),
        ("AddCharset utf-8 .css .js .xml .json .txt .vtt .md", "same"),
        ("AddCharset UTF-8 .woff .png", "harmless"),
        ("AddCharset utf-8 .php", "harmless"),
        ("AddDefaultCharset On", "blocks"),
        ("AddDefaultCharset iso-8859-1", "blocks"),
        ("AddDefaultCharset", "blocks"),
        ("AddCharset windows-1251 .html", "blocks"),
        ("AddCharset windows-1251 .css", "blocks"),
        ("AddCharset windows-1251 .png", "harmless"),
        ("AddCharset utf-8", "blocks"),
    ],
)
def test_a_character_set_is_judged_by_what_nginx_says(line: str, expected: str) -> None:
    assert verdict(line) == expected
    assert wishes(line) == []


@pytest.mark.parametrize(
    "line", ["AddDefaultCharset utf-8", "AddDefaultCharset UTF8", "AddCharset utf-8 .css .html", "AddCharset UTF-8 htm"]
)
def test_pages_in_utf_8_are_a_setting_of_the_site(line: str) -> None:
    assert wishes(line) == [Utf8Pages()]
    assert verdict(line) == "blocks"
    assert verdict(line, replace(PHP, utf8_pages=True)) == "translated"
    assert wishes(line, UPLOADS) == []
    assert wishes(f'<FilesMatch "^a">\n{line}\n</FilesMatch>') == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("AddOutputFilterByType DEFLATE text/html text/css", "harmless"),
        ("AddOutputFilterByType BROTLI_COMPRESS text/html", "harmless"),
        ("AddOutputFilterByType BROTLI_COMPRESS;DEFLATE text/html", "harmless"),
        ("AddOutputFilter DEFLATE js css", "harmless"),
        ("SetOutputFilter DEFLATE", "harmless"),
        ("AddOutputFilter INCLUDES .html", "blocks"),
        ("AddOutputFilter Includes html", "blocks"),
        ("SetOutputFilter INCLUDES", "blocks"),
        ("SetOutputFilter INCLUDES;DEFLATE", "blocks"),
        ("AddOutputFilterByType SUBSTITUTE text/html", "blocks"),
        ("SetOutputFilter RATE_LIMIT", "blocks"),
        ("AddOutputFilterByType DEFLATE", "blocks"),
    ],
)
def test_a_filter_other_than_compression_blocks(line: str, expected: str) -> None:
    assert verdict(line) == expected


@pytest.mark.parametrize(
    ("text", "with_php", "of_files"),
    [
        ("Header set Cache-Control max-age=600", "harmless", "harmless"),
        ('Header set Cache-Control "public, max-age=31536000, immutable"', "harmless", "harmless"),
        ('Header append Cache-Control "no-cache, must-revalidate"', "harmless", "harmless"),
        ("Header unset Cache-Control", "harmless", "harmless"),
        ("Header append Vary User-Agent", "harmless", "harmless"),
        ("Header append Vary Cookie", "blocks", "harmless"),
        ('Header set Cache-Control "private, no-store"', "blocks", "harmless"),
        ("Header always set Cache-Control no-store", "blocks", "harmless"),
        ('Header merge cache-control "max-age=0,private"', "blocks", "harmless"),
        (r'<FilesMatch "\.(js|css)$">\nHeader set Cache-Control "private"\n</FilesMatch>', "harmless", "harmless"),
        (r'<FilesMatch "\.(html|php)$">\nHeader set Cache-Control "private"\n</FilesMatch>', "blocks", "harmless"),
        (r'<FilesMatch "^index">\nHeader set Cache-Control "private"\n</FilesMatch>', "blocks", "harmless"),
    ],
)
def test_what_keeps_answers_to_their_visitor_blocks_where_visitors_get_their_own(
    text: str, with_php: str, of_files: str
) -> None:
    text = text.replace(r"\n", "\n")
    asks = {"/": frozenset({"ada"})}

    assert verdict(text) == with_php
    assert verdict(text, FILES) == of_files
    if with_php == "blocks" or "private" in text:
        assert verdict(text, replace(FILES, protected=asks)) == "blocks"
