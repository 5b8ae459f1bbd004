"""What a site's owner keeps from visitors, at a real nginx: denied paths, and paths that ask for a password."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
import trio

from svc_webhost.apache.passwords import read_passwords
from svc_webhost.crypt import hash_random_password, hash_visitors_password
from svc_webhost.nginx import Login, Php, ProtectedPath, SiteServer, WordPress
from svc_webhost.nginx.access import password_file
from tests.support.apache import accepting, php_fpm
from tests.support.nginx import Sites, nginx_sites

pytestmark = [pytest.mark.system, pytest.mark.isolated]

PASSWORD = "correct-horse-battery"
ADA = Login(login="ada", verifier=trio.run(hash_visitors_password, PASSWORD))
EVE = Login(login="eve", verifier=hash_random_password("another-password"))
OF_APACHE = Login(login="old", verifier="$apr1$Xj5aSgxr$2k0qFJeItxwaNxnxVEX8Z/")
"""As htpasswd writes it; the password is "secret"."""
TAKEN_OVER = (
    OF_APACHE.verifier,
    "$1$abcdefgh$cHJi5PXp/ki/ktXzqlk6I1",
    "$2y$05$aaaaaaaaaaaaaaaaaaaaaOjOHCcGZ1ZydhnG2lX11qSmiRJbsbsA.",
    "$5$abc$qsg6EHbUzHQzF1POlD7zUwBINSELQxypPaeDcZe6vH0",
    "$6$abc$IdWKNKTJEb8LxY7CGg8YBXlvtfZzFw7Mp/r6niK9YB2mdvgY..TKjv1T..8RadRt2qvUHYRLr/TsVArtr91iR1",
    "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=",
    "abNANd1rDfiNc",
)
"""Of the password "secret", as htpasswd and other programs write it."""
SAYS = "<?php echo json_encode([$_SERVER['REMOTE_USER'] ?? null, $_SERVER['HTTP_AUTHORIZATION'] ?? null]);"


@pytest.fixture
def nginx() -> Iterator[Sites]:
    with nginx_sites() as sites:
        yield sites


def furnished(nginx: Sites, *names: str, **values: Any) -> SiteServer:
    site = nginx.site(1001, **values)
    for name in names:
        file = nginx.folders.sites / "s1001" / "public" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"this is {name}")
    return site


async def visit(nginx: Sites, path: str, login: str = "", password: str = PASSWORD) -> tuple[int, str]:
    told = {"Authorization": f"Basic {base64.b64encode(f'{login}:{password}'.encode()).decode()}"} if login else {}
    answer = await nginx.visit("site1001.example", path, **told)
    return answer.status_code, answer.text if answer.status_code == 200 else ""


async def test_denied_paths_are_refused_whatever_way_they_are_asked_for(nginx: Sites) -> None:
    files = ("private/a.txt", "a/debug.log", "dump.sql", "uploads/x/shell.txt", "privates.txt")
    denied = ("/private", "debug.log", "*.sql", "/uploads/**/shell*", "/.well-known")
    await nginx.generations.start([furnished(nginx, *files, denied=denied)])
    (nginx.folders.challenges / "token").write_text("token.proof")

    refused = (
        *("/private/a.txt", "//private//a.txt", "/x/../private/a.txt", "/%70rivate/a.txt", "/private", "/private/no"),
        *("/a/debug.log", "/dump.sql?x=1", "/uploads/x/shell.txt", "/.well-known/a"),
    )
    assert {path: (await visit(nginx, path))[0] for path in refused} == dict.fromkeys(refused, 403)
    assert await visit(nginx, "/privates.txt") == (200, "this is privates.txt")
    assert await visit(nginx, "/.well-known/acme-challenge/token") == (200, "token.proof")


async def test_a_protected_path_is_opened_by_a_password_of_its_own_and_no_other(nginx: Sites) -> None:
    protected = (
        ProtectedPath(path="/members", logins=(ADA, OF_APACHE)),
        ProtectedPath(path="/members/board", logins=(EVE,)),
    )
    files = ("members/a.txt", "members/board/b.txt", "open.txt")
    await nginx.generations.start([furnished(nginx, *files, protected=protected)])

    for path in ("/members/a.txt", "/members/", "/members/nothing", "//members/a.txt", "/members/board/b.txt"):
        assert (await visit(nginx, path))[0] == 401, path
        assert (await visit(nginx, path, "ada", "wrong"))[0] == 401, path
    assert await visit(nginx, "/members/a.txt", "ada") == (200, "this is members/a.txt")
    assert await visit(nginx, "/members/a.txt", "old", "secret") == (200, "this is members/a.txt")
    assert (await visit(nginx, "/members/a.txt", "eve", "another-password"))[0] == 401
    assert (await visit(nginx, "/members/board/b.txt", "ada"))[0] == 401
    assert await visit(nginx, "/members/board/b.txt", "eve", "another-password") == (200, "this is members/board/b.txt")
    assert await visit(nginx, "/open.txt") == (200, "this is open.txt")


async def test_a_whole_site_behind_a_password_still_proves_its_name(nginx: Sites) -> None:
    site = furnished(nginx, "a.txt", protected=(ProtectedPath(path="/", logins=(ADA,)),))
    await nginx.generations.start([site])
    (nginx.folders.challenges / "token").write_text("token.proof")

    assert (await visit(nginx, "/"))[0] == 401
    assert await visit(nginx, "/", "ada") == (200, "page of 1001")
    assert await visit(nginx, "/.well-known/acme-challenge/token") == (200, "token.proof")


async def test_a_login_that_is_taken_away_opens_nothing_from_then_on(nginx: Sites) -> None:
    def site(*logins: Login) -> SiteServer:
        return furnished(nginx, "a.txt", protected=(ProtectedPath(path="/a.txt", logins=logins),))

    await nginx.generations.start([site(ADA, EVE)])
    assert (await visit(nginx, "/a.txt", "ada"))[0] == 200
    await nginx.generations.apply({1001: site(EVE)})

    assert (await visit(nginx, "/a.txt", "ada"))[0] == 401
    assert (await visit(nginx, "/a.txt", "eve", "another-password"))[0] == 200
    file = password_file(nginx.folders, 1001, "/a.txt")
    assert (file.stat().st_mode & 0o777, file.stat().st_uid) == (0o640, 0)

    await nginx.generations.apply({1001: furnished(nginx, "a.txt")})
    assert (await visit(nginx, "/a.txt"))[0] == 200
    assert not file.exists()


async def test_programs_are_told_who_it_is_and_no_password_that_is_not_theirs(nginx: Sites) -> None:
    with php_fpm(nginx.folders.sites / "php") as php:
        await accepting(php)
        root = nginx.folders.sites / "s1001" / "public"
        protected = (ProtectedPath(path="/members", logins=(ADA,)),)
        site = furnished(nginx, "members/b.txt", serves=Php(root=str(root), socket=str(php)), protected=protected)
        (root / "index.php").write_text(SAYS)
        (root / "members" / "index.php").write_text(SAYS)
        await nginx.generations.start([site])

        assert (await visit(nginx, "/members/index.php"))[0] == 401
        assert await visit(nginx, "/members/", "ada") == (200, '["ada",null]')
        # What the application itself asks for elsewhere comes to it, and nobody is taken for who he says he is.
        status, said = await visit(nginx, "/", "ada", "wrong")
        assert (status, said[:14]) == (200, '[null,"Basic Y')
        assert await visit(nginx, "/") == (200, "[null,null]")


async def test_passwords_are_compared_with_whatever_an_import_takes_over(nginx: Sites) -> None:
    logins = tuple(Login(login=f"user{number}", verifier=verifier) for number, verifier in enumerate(TAKEN_OVER))
    protected = (ProtectedPath(path="/members", logins=logins),)
    await nginx.generations.start([furnished(nginx, "members/a.txt", protected=protected)])

    for number, verifier in enumerate(TAKEN_OVER):
        assert read_passwords(f"ada:{verifier}".encode()).verifiers == {"ada": verifier}
        assert (await visit(nginx, "/members/a.txt", f"user{number}", "secret"))[0] == 200, verifier
        assert (await visit(nginx, "/members/a.txt", f"user{number}", "wrong"))[0] == 401, verifier


async def test_a_file_that_is_the_sites_alone_is_served_to_nobody(nginx: Sites) -> None:
    site = furnished(nginx, "members/users.txt", "members/.htpasswd", ".htpasswds/passwd", "open.txt")
    (nginx.folders.sites / "s1001/public/members/users.txt").chmod(0o600)
    await nginx.generations.start([site])

    refused = {
        "/members/users.txt": 404,
        "/members/.htpasswd": 403,
        "/members/%2ehtpasswd": 403,
        "/.htpasswds/passwd": 404,
    }
    assert {path: (await visit(nginx, path))[0] for path in refused} == refused
    assert await visit(nginx, "/open.txt") == (200, "this is open.txt")


async def test_a_line_feed_in_a_name_opens_nothing_and_no_program_is_shown(nginx: Sites) -> None:
    with php_fpm(nginx.folders.sites / "php") as php:
        await accepting(php)
        root = nginx.folders.sites / "s1001" / "public"
        serves = WordPress(root=str(root), socket=str(php))
        names = ("up/a.php", "up/x\ny.php", "wp-content/uploads/a.php", "wp-content/uploads/x\ny.php")
        sources = ("a.phar", "a.phps", "A.PHP", "a.php~", "a.php.bak", "a.inc", "a.php\n")
        site = furnished(nginx, *names, "nl\n/.git/config", *sources, serves=serves, denied=("/up/**/*.php",))
        (root / "index.php").write_text("<?php echo 'run';")
        await nginx.generations.start([site])

        answers = {name: (await visit(nginx, f"/{quote(name)}"))[0] for name in (*names, "nl\n/.git/config", *sources)}
        assert answers == {
            **dict.fromkeys(names[:2], 403),
            **dict.fromkeys((*names[2:], "nl\n/.git/config", *sources), 404),
        }
        assert await visit(nginx, "/index.php") == (200, "run")


async def test_routes_of_a_program_may_end_like_files_of_programs(nginx: Sites) -> None:
    with php_fpm(nginx.folders.sites / "php") as php:
        await accepting(php)
        root = nginx.folders.sites / "s1001" / "public"
        there = ("a.inc", "b.PHAR", "c.inc ", "lib.inc/style.css", "lib.inc/sub.phar/x.css")
        site = furnished(nginx, *there, serves=Php(root=str(root), socket=str(php)))
        (root / "index.php").write_text("<?php echo 'route ', $_SERVER['REQUEST_URI'];")
        (root / "lib.inc/index.php").write_text("<?php echo 'lib';")
        await nginx.generations.start([site])

        for route in (
            "/companies/apple.inc",
            "/companies/apple.inc/",
            "/@acme.inc?page=2",
            "/get/tool.phar",
            "/a.inc/x",
        ):
            assert await visit(nginx, route) == (200, f"route {route}")
        for name in ("a.inc", "b.PHAR", "c.inc "):
            assert (await visit(nginx, f"/{quote(name)}"))[0] == 404
        for style in there[3:]:
            assert await visit(nginx, f"/{style}") == (200, f"this is {style}")
        assert await visit(nginx, "/lib.inc/") == (200, "lib")


async def test_a_static_site_offers_archives_of_php_and_shows_no_other_program(nginx: Sites) -> None:
    site = furnished(nginx, "composer.phar", "a.inc", "a.php")
    await nginx.generations.start([site])

    assert await visit(nginx, "/composer.phar") == (200, "this is composer.phar")
    assert {path: (await visit(nginx, path))[0] for path in ("/a.inc", "/a.php", "/b.inc")} == {
        "/a.inc": 404,
        "/a.php": 404,
        "/b.inc": 404,
    }
