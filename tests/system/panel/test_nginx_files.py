"""A site's files at a real nginx: the page that answers for paths without a file, and assets that browsers may keep."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
import trio

from svc_webhost.crypt import hash_visitors_password
from svc_webhost.nginx import Generations, Login, PathRedirect, Php, ProtectedPath, SiteServer, StaticRoot, WordPress
from svc_webhost.nginx.brotli import MODULE
from svc_webhost.nginx.program import NGINX
from tests.support.apache import accepting, php_fpm
from tests.support.nginx import Sites, nginx_sites

pytestmark = [pytest.mark.system, pytest.mark.isolated]

HOST: Final = "site1001.example"
HASHED: Final = "assets/index-DpLXM2uR.js"
KEPT: Final = "max-age=31536000, immutable"
ADA: Final = Login(login="ada", verifier=trio.run(hash_visitors_password, "correct-horse-battery"))


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


def root(nginx: Sites) -> str:
    return str(nginx.folders.sites / "s1001" / "public")


async def answers(nginx: Sites, *paths: str) -> dict[str, object]:
    """Of each path the text, or the status if that is not 200."""
    found: dict[str, object] = {}
    for path in paths:
        answer = await nginx.visit(HOST, path)
        found[path] = answer.text if answer.status_code == 200 else answer.status_code
    return found


async def test_the_page_answers_for_paths_that_no_file_has_and_for_nothing_else(nginx: Sites) -> None:
    serves = StaticRoot(root=root(nginx), fallback_page="/app.html")
    files = ("app.html", "about.html", "docs/index.html", "media/a.svg", "b.js/index.html", ".env", "a.php", "x.inc")
    moved = (PathRedirect(source="/old", target="/new"), PathRedirect(source="/gone/", target="/", below=True))
    protected = (ProtectedPath(path="/members", logins=(ADA,)),)
    site = furnished(nginx, *files, serves=serves, denied=("/private",), protected=protected, path_redirects=moved)
    await nginx.generations.start([site])

    routes = ("/products/7?x=1", "/users/john.doe", "/a/", "/gone.html", "/v1.2", "/media/", "/y.inc")
    missing = ("/gone.js", "/x/gone.CSS", "/robots.txt", "/.env", "/a/.git/x", "/a.php", "/b.php", "/x.inc")
    pages = {
        "/": "page of 1001",
        "/about.html": "this is about.html",
        "/docs/": "this is docs/index.html",
        "/media/a.svg": "this is media/a.svg",
        "/b.js/": "this is b.js/index.html",
    }
    kept = {"/private/x": 403, "/members/x": 401, "/old": 301, "/gone/x": 301, "/.htaccess": 403}
    assert await answers(nginx, *routes) == dict.fromkeys(routes, "this is app.html")
    assert await answers(nginx, *pages) == pages
    assert await answers(nginx, *missing) == dict.fromkeys(missing, 404)
    assert await answers(nginx, *kept) == kept
    assert (await nginx.visit(HOST, "/products/7")).headers["Content-Type"].startswith("text/html")


async def test_a_page_that_is_missing_denied_or_protected_answers_for_nothing(nginx: Sites) -> None:
    serves = StaticRoot(root=root(nginx), fallback_page="/app/page.html")
    site = furnished(nginx, serves=serves)
    await nginx.generations.start([site])
    missing = await answers(nginx, "/products", "/app/page.html", "/app/page.html/x")

    furnished(nginx, "app/page.html")
    found = await answers(nginx, "/products", "/app/page.html")
    await nginx.generations.apply({1001: site.model_copy(update={"denied": ("/app",)})})
    denied = await answers(nginx, "/products", "/app/page.html")
    protected = (ProtectedPath(path="/app", logins=(ADA,)),)
    await nginx.generations.apply({1001: site.model_copy(update={"protected": protected})})

    assert missing == dict.fromkeys(("/products", "/app/page.html", "/app/page.html/x"), 404)
    assert found == dict.fromkeys(("/products", "/app/page.html"), "this is app/page.html")
    assert denied == dict.fromkeys(("/products", "/app/page.html"), 403)
    assert await answers(nginx, "/products", "/app/page.html") == dict.fromkeys(("/products", "/app/page.html"), 401)


async def test_a_site_with_php_runs_its_programs_beside_the_page(nginx: Sites) -> None:
    public = nginx.folders.sites / "s1001" / "public"
    with php_fpm(nginx.folders.sites / "php") as socket:
        await accepting(socket)
        serves = Php(root=str(public), socket=str(socket), fallback_page="/index.html")
        site = furnished(nginx, "x.inc", serves=serves, cache_assets=True)
        (public / "api").mkdir()
        (public / "api" / "list.php").write_text("<?php echo 'ran ', $_SERVER['PATH_INFO'] ?? '';")
        (public / "api" / "index.php").write_text("<?php echo 'index';")
        await nginx.generations.start([site])

        assert await answers(
            nginx, "/api/list.php", f"/api/list.php/{HASHED}", "/api/", "/products", "/gone.php", "/gone.js", "/x.inc"
        ) == {
            "/api/list.php": "ran ",
            f"/api/list.php/{HASHED}": f"ran /{HASHED}",
            "/api/": "index",
            "/products": "page of 1001",
            "/gone.php": 404,
            "/gone.js": 404,
            "/x.inc": 404,
        }


@pytest.mark.parametrize("kind", ["static", "php", "wordpress"])
async def test_browsers_keep_files_whose_name_has_a_hash_and_no_others(nginx: Sites, kind: str) -> None:
    kinds = {"php": Php, "wordpress": WordPress}
    files = (HASHED, "app.js", "photo-20240101.jpg")
    serves = StaticRoot(root=root(nginx)) if kind == "static" else kinds[kind](root=root(nginx), socket="/srv/no.sock")
    site = furnished(nginx, *files, serves=serves, cache_assets=True)
    await nginx.generations.start([site])

    kept = await nginx.visit(HOST, f"/{HASHED}?x=1")
    unchanged = await nginx.visit(HOST, f"/{HASHED}", **{"If-None-Match": kept.headers["ETag"]})
    others = [await nginx.visit(HOST, path) for path in ("/", "/app.js", "/photo-20240101.jpg", "/gone-DpLXM2uR.js")]
    await nginx.generations.apply({1001: site.model_copy(update={"cache_assets": False})})

    assert kept.headers["Cache-Control"] == f"public, {KEPT}"
    assert kept.headers["X-Content-Type-Options"] == "nosniff"
    assert unchanged.status_code == 304
    assert unchanged.headers["Cache-Control"] == f"public, {KEPT}"
    assert not any("Cache-Control" in answer.headers for answer in others)
    assert others[-1].status_code == 404
    assert "Cache-Control" not in (await nginx.visit(HOST, f"/{HASHED}")).headers


async def test_what_asks_for_a_password_is_kept_by_the_browser_alone(nginx: Sites) -> None:
    protected = (ProtectedPath(path="/members", logins=(ADA,)),)
    site = furnished(nginx, HASHED, f"members/{HASHED}", cache_assets=True, protected=protected)
    await nginx.generations.start([site])

    answer = await nginx.visit(HOST, f"/{HASHED}")
    asked = await nginx.visit(HOST, f"/members/{HASHED}")

    assert answer.headers["Cache-Control"] == f"private, {KEPT}"
    assert asked.status_code == 401
    assert "Cache-Control" not in asked.headers


async def test_pages_are_sent_as_utf_8_where_the_site_wants_so_and_nothing_else_changes(nginx: Sites) -> None:
    site = furnished(nginx, "a.txt", "a.png", "a.xml", "a.unknown")
    types = {"/": "text/html", "/a.txt": "text/plain; charset=utf-8", "/a.png": "image/png", "/a.xml": "text/xml"}
    types["/a.unknown"] = "application/octet-stream"

    async def asked() -> dict[str, str]:
        return {path: (await nginx.visit(HOST, path)).headers["Content-Type"] for path in types}

    await nginx.generations.start([site])
    before = await asked()
    await nginx.generations.apply({1001: site.model_copy(update={"utf8_pages": True})})

    assert before == types
    assert await asked() == {**types, "/": "text/html; charset=utf-8"}


async def test_a_module_for_brotli_that_nginx_cannot_load_keeps_no_site_from_being_served(nginx: Sites) -> None:
    module = nginx.folders.nginx / "brotli.so"
    generations = Generations(nginx.folders, nginx.launcher, nginx.ports, brotli=module)
    site = furnished(nginx, serves=StaticRoot(root=root(nginx)))
    (nginx.folders.sites / "s1001" / "public" / "a.css").write_text("p { color: red }\n" * 200)

    await generations.start([site])
    module.write_bytes(b"built for another nginx")
    refused = [await generations.apply({1001: site}), await generations.apply({})]
    nginx.launcher.end(NGINX)
    module.unlink()
    refused.append(await generations.apply({}))
    answer = await nginx.visit(HOST, "/a.css", **{"Accept-Encoding": "gzip, br"})

    assert refused == [{}, {}, {}]
    assert answer.headers["Content-Encoding"] == "gzip"


async def test_answers_are_compressed_as_the_browser_can_read_them(nginx: Sites) -> None:
    site = furnished(nginx)
    (nginx.folders.sites / "s1001" / "public" / "a.css").write_text("p { color: red }\n" * 200)
    await nginx.generations.start([site])

    said = [
        (await nginx.visit(HOST, "/a.css", **{"Accept-Encoding": offered})).headers.get("Content-Encoding")
        for offered in ("identity", "gzip", "gzip, br")
    ]

    assert said == [None, "gzip", "br" if MODULE.exists() else "gzip"]
