"""Denials of .htaccess files as denied paths of a site: what is denied there is denied here, and nothing is wished for
where that could not be said."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import PurePosixPath

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from svc_webhost.accepted import is_denied
from svc_webhost.apache.htaccess import parse
from svc_webhost.htaccess.denying import _name_pattern, _written_out
from svc_webhost.htaccess.judging import judge
from svc_webhost.htaccess.situation import Situation
from svc_webhost.htaccess.verdicts import Denied, Verdict

TOP = Situation(PurePosixPath("."), php=False, wordpress=False, force_https=False)
INSIDE = replace(TOP, folder=PurePosixPath("a/b"))
PROTECTED = replace(INSIDE, protected={"/a": frozenset({"ada"})})


def wished(text: str, situation: Situation) -> list[str]:
    wishes = [wish for one in judge(parse(text), situation) for wish in one.opinion.wishes]
    return [wish.pattern for wish in dict.fromkeys(wishes) if isinstance(wish, Denied)]


@pytest.mark.parametrize(
    ("text", "situation", "patterns"),
    [
        ("Require all denied", INSIDE, ["/a/b"]),
        ("Order deny,allow\nDeny from all", INSIDE, ["/a/b"]),
        ("Order allow,deny", INSIDE, ["/a/b"]),
        ('<Files "secret.txt">\nRequire all denied\n</Files>', TOP, ["secret.txt"]),
        ("<Files *.sql>\nOrder allow,deny\nDeny from all\n</Files>", INSIDE, ["/a/b/**/*.sql"]),
        ('<FilesMatch "\\.(sql|log)$">\nRequire all denied\n</FilesMatch>', TOP, ["*.sql", "*.log"]),
        ('<FilesMatch "^(a|b-?c)\\.txt$">\nRequire all denied\n</FilesMatch>', TOP, ["a.txt", "b-c.txt", "bc.txt"]),
        ('<Files ~ "^dump">\nDeny from all\n</Files>', TOP, ["dump*"]),
        ('<FilesMatch "^(\\.env|secret)$">\nRequire all denied\n</FilesMatch>', TOP, [".env", "secret"]),
        ('<Files ~ "^([\\._]ht|README$)">\nDeny from all\n</Files>', TOP, [".ht*", "_ht*", "README"]),
        ('<FilesMatch "\\.sw[op]$">\nRequire all denied\n</FilesMatch>', TOP, ["*.swo", "*.swp"]),
        ('<FilesMatch "^[a-c]$">\nRequire all denied\n</FilesMatch>', TOP, ["a", "b", "c"]),
        ('<FilesMatch ".+\\.sql$">\nRequire all denied\n</FilesMatch>', TOP, ["*.sql"]),
        (
            "<IfModule mod_authz_core.c>\nRequire all denied\n</IfModule>\n"
            "<IfModule !mod_authz_core.c>\nDeny from all\n</IfModule>",
            INSIDE,
            ["/a/b"],
        ),
        (
            "<IfVersion < 2.4>\nDeny from all\n</IfVersion>\n<IfVersion >= 2.4>\nRequire all denied\n</IfVersion>",
            INSIDE,
            ["/a/b"],
        ),
        ("RewriteEngine on\nRewriteRule ^secret - [F]", TOP, ["/secret*"]),
        ("RewriteEngine on\nRewriteRule ^private/ - [F,L]", INSIDE, ["/a/b/private/"]),
        ("RewriteEngine on\nRewriteRule ^(one|two)\\.php$ - [F]", TOP, ["/one.php", "/two.php"]),
        ("RewriteEngine on\nRewriteRule \\.bak$ - [F]", TOP, ["*.bak"]),
    ],
)
def test_a_denial_is_wished_for_and_translated_where_the_site_has_it(
    text: str, situation: Situation, patterns: list[str]
) -> None:
    assert wished(text, situation) == patterns

    told = judge(parse(text), replace(situation, denied=frozenset(patterns)))

    assert {one.opinion.verdict for one in told} <= {Verdict.TRANSLATED, Verdict.HARMLESS}


@pytest.mark.parametrize(
    "text",
    [
        "Deny from 192.0.2.7",
        "Require all denied\nAllow from all",
        "Require all denied\nSatisfy any",
        "Require all denied\nRequire ip 192.0.2.7",
        "Deny from all\nAllow from env=good",
        "<Limit POST>\nDeny from all\n</Limit>",
        "<RequireAny>\nRequire all denied\n</RequireAny>",
        "<IfVersion < 2.4>\nDeny from all\n</IfVersion>",
        "<IfVersion <2.3>\nDeny from all\n</IfVersion>\n<IfVersion >= 2.3>\nRequire all granted\n</IfVersion>",
        "<IfModule !mod_authz_core.c>\nDeny from all\n</IfModule>",
        '<FilesMatch "\\.(sql|log)$">\nRequire all denied\n</FilesMatch>\n<Files a.sql>\nRequire all granted\n</Files>',
        '<FilesMatch "secret">\nRequire all denied\n</FilesMatch>',
        '<FilesMatch "^[a-z]+$">\nRequire all denied\n</FilesMatch>',
        '<FilesMatch "^[^ab]$">\nRequire all denied\n</FilesMatch>',
        '<FilesMatch "^[ab]+$">\nRequire all denied\n</FilesMatch>',
        '<FilesMatch "^[\\w]x$">\nRequire all denied\n</FilesMatch>',
        '<FilesMatch "^[ab\\\x03]$">\nRequire all denied\n</FilesMatch>',
        # Characters that stand for `^`, `$` and `.*` in what an expression is written out to.
        '<FilesMatch "^secret\\\x03">\nRequire all denied\n</FilesMatch>',
        '<FilesMatch "\\\x02secret$">\nRequire all denied\n</FilesMatch>',
        '<FilesMatch "^secret\\\x04$">\nRequire all denied\n</FilesMatch>',
        '<FilesMatch "(?i)\\.sql$">\nRequire all denied\n</FilesMatch>',
        '<FilesMatch "^a{2}$">\nRequire all denied\n</FilesMatch>',
        '<FilesMatch "\\.php$">\nRequire all denied\n</FilesMatch>',
        "<Files index*>\nRequire all denied\n</Files>",
        "RewriteEngine on\nRewriteRule ^index\\.php$ - [F]",
        '<Files "secret?">\nRequire all denied\n</Files>',
        "RewriteEngine on\nRewriteRule ^secret - [F,NC]",
        "RewriteEngine on\nRewriteCond %{REMOTE_ADDR} ^192\nRewriteRule ^secret - [F]",
        "RewriteEngine on\nRewriteRule !^secret - [F]",
        "RewriteEngine on\nRewriteRule secret - [F]",
        "RewriteEngine on\nRewriteRule ^$ - [F]",
        "RewriteEngine on\nRewriteRule ^a.*b$ - [F]",
        "RewriteRule ^secret - [F]",
        "RewriteEngine on\nRewriteCond %{REQUEST_FILENAME} -f\nRewriteRule ^ - [L]\nRewriteRule ^secret - [F]",
        "RewriteEngine on\nRewriteRule ^x$ /y\nRewriteRule ^secret - [F]",
    ],
)
def test_what_denies_less_or_cannot_be_written_out_blocks_and_is_not_wished_for(text: str) -> None:
    judged = judge(parse(text), INSIDE)

    assert wished(text, INSIDE) == []
    assert Verdict.BLOCKS in {one.opinion.verdict for one in judged}


@pytest.mark.parametrize(
    "before",
    [
        "RewriteCond %{REQUEST_FILENAME} -f [OR]\nRewriteCond %{REQUEST_FILENAME} -d\nRewriteRule ^ - [L]",
        "RewriteCond %{REQUEST_FILENAME} !-f\nRewriteCond %{REQUEST_FILENAME} !-d\nRewriteRule . /index.php [L]",
    ],
    ids=["files", "others"],
)
def test_what_an_earlier_rule_has_ended_for_some_is_not_denied_to_them(before: str) -> None:
    site = replace(TOP, php=True, indexes={})

    assert wished("RewriteEngine on\nRewriteRule ^secret - [F]", site) == ["/secret*"]
    assert wished(f"RewriteEngine on\n{before}\nRewriteRule ^secret - [F]", site) == []


def test_a_whole_site_is_not_denied() -> None:
    assert wished("Require all denied", TOP) == []


@pytest.mark.parametrize("situation", [PROTECTED, replace(INSIDE, denied=frozenset({"/a"}))], ids=["asks", "denies"])
def test_what_is_opened_below_a_folder_that_the_site_closes_blocks(situation: Situation) -> None:
    [judged] = judge(parse("Require all granted"), situation)

    assert judged.opinion.verdict is Verdict.BLOCKS


BASIC = "AuthType Basic\nAuthName x\nAuthUserFile /home/x/.htpasswd\nRequire valid-user"


def test_a_password_is_translated_where_the_site_asks_for_one() -> None:
    assert {one.opinion.verdict for one in judge(parse(BASIC), PROTECTED)} == {Verdict.TRANSLATED}
    assert {one.opinion.verdict for one in judge(parse(BASIC), INSIDE)} == {Verdict.BLOCKS}


@pytest.mark.parametrize(
    "text",
    [
        BASIC.replace("valid-user", "user eve"),
        f"{BASIC}\nSatisfy any",
        f"{BASIC}\nRequire ip 192.0.2.7",
        f"{BASIC}\nDeny from 192.0.2.7",
        f"<Files a.txt>\n{BASIC}\n</Files>",
        f"<Limit GET>\n{BASIC}\n</Limit>",
        BASIC.replace("Basic", "Digest"),
        f"{BASIC}\nAuthGroupFile /home/x/groups",
    ],
)
def test_a_password_for_others_than_the_site_lets_in_blocks(text: str) -> None:
    assert Verdict.BLOCKS in {one.opinion.verdict for one in judge(parse(text), PROTECTED)}


piece = st.sampled_from(["a", "b", "\\.", "-", "a?", "[ab]", "[\\.a]", "[.b]?", "(?:ab)?", "(a|b)", "(a|b\\.|)?"])
text = st.lists(piece, min_size=1, max_size=4).map("".join)
expression = st.builds(
    lambda begin, texts, end: f"{begin}({'|'.join(texts)}){end}",
    st.sampled_from(["^", "^.*", "(^)", ""]),
    st.lists(text, min_size=1, max_size=3),
    st.sampled_from(["$", ".*$", "($)", ""]),
)


@given(expression, st.text("ab.-", min_size=1, max_size=5))
@settings(suppress_health_check=[HealthCheck.filter_too_much])
def test_whatever_an_expression_matches_is_denied_by_what_it_was_written_out_to(expression: str, name: str) -> None:
    written = _written_out(expression)
    patterns = [_name_pattern(each) for each in written or ()]
    assume(patterns and None not in patterns and re.search(expression, name))

    assert any(is_denied(pattern, f"/{name}") for pattern in patterns if pattern is not None)


AROUND = replace(INSIDE, around="public/way")


@pytest.mark.parametrize(
    ("text", "situation"),
    [
        ("Require all denied", AROUND),
        ("Require all denied", replace(AROUND, denied=frozenset({"/a/b"}))),
        ("<Files secret>\nRequire all denied\n</Files>", AROUND),
        ("RewriteEngine on\nRewriteRule ^secret - [F]", AROUND),
        ("RewriteEngine on\nRewriteRule ^secret - [F]", replace(TOP, around="public/way")),
        ("Require all denied", replace(AROUND, folder=PurePosixPath(".git"))),
        ("Require all denied", replace(AROUND, folder=None)),
        ("php_flag engine off", replace(AROUND, folder=PurePosixPath("wp-content/uploads"), wordpress=True, php=True)),
        (
            "AuthType Basic\nAuthUserFile /x\nRequire valid-user",
            replace(AROUND, protected={"/a/b": frozenset({"ada"})}),
        ),
    ],
)
def test_what_is_kept_by_an_address_blocks_where_a_link_leads_past_it(text: str, situation: Situation) -> None:
    assert wished(text, situation) == []
    assert Verdict.BLOCKS in {one.opinion.verdict for one in judge(parse(text), situation)}


def test_a_name_is_denied_wherever_a_link_leads() -> None:
    text = "<Files secret>\nRequire all denied\n</Files>"

    assert wished(text, replace(TOP, around="public/way")) == ["secret"]
