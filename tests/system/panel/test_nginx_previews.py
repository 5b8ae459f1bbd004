"""What visitors of a preview get of a real nginx: the site as at its own name, with addresses of the preview."""

from __future__ import annotations

import base64
import grp
import hashlib
import json
import re
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from svc_webhost.crypt import hash_random_password
from svc_webhost.nginx import (
    App,
    Certificate,
    Login,
    NginxError,
    Php,
    ProtectedPath,
    SiteServer,
    StaticRoot,
    Suspended,
)
from svc_webhost.nginx.previews import preview_socket
from svc_webhost.nginx.probe import fingerprint
from svc_webhost.nginx.program import NGINX
from svc_webhost.preview_certificate import put_preview_certificate, remove_preview_certificate
from tests.support.apache import accepting, php_fpm
from tests.support.nginx import Sites, nginx_sites

pytestmark = [pytest.mark.system, pytest.mark.isolated]

DOMAIN = "shop.example"
PREVIEW = "shop-example-0a1b2c.previews.example"
WWW = "www-shop-example-0d1e2f.previews.example"
PREVIEWS = {PREVIEW: DOMAIN, WWW: "www.shop.example"}
OTHERS = (
    r" https://shop.example.com/login //shop.example.evil.test https://shop.example-a.test/ //shop.examples"
    r' "https:\/\/shop.example.com\/" https://shop.example:9000/app //shop.example:9000 https://shop.example@evil.test/'
    " https://other.example/ shop.example mail@shop.example https%3A%2F%2Fshop.example"
)
"""Addresses of others, and what is no address."""
PAGES = """<?php
switch ($_GET['say'] ?? '') {
case 'asked':
    header('Content-Type: text/plain');
    exit(json_encode($_SERVER + ['BODY' => md5(file_get_contents('php://input'))]));
case 'cookies':
    setcookie('own', '1', ['domain' => '.shop.example', 'secure' => true, 'samesite' => 'None', 'httponly' => true]);
    setcookie('above', '2', ['domain' => 'example']);
    setcookie('plain', '3');
    exit;
case 'headers':
    header('Strict-Transport-Security: max-age=31536000; includeSubDomains');
    header("Content-Security-Policy: default-src https://shop.example");
    header('Link: <https://shop.example/wp-json/>; rel="https://api.w.org/"');
    header('X-Robots-Tag: all');
    exit;
case 'to':
    header('Location: ' . $_GET['to'], true, (int) ($_GET['status'] ?? 302));
    exit;
default:
    header('Content-Type: ' . ($_GET['type'] ?? 'text/html'));
    exit($_GET['text'] ?? 'front');
}
"""


@pytest.fixture(scope="module")
def nginx() -> Iterator[Sites]:
    with nginx_sites() as sites:
        yield sites


@pytest.fixture(scope="module")
def shop(nginx: Sites) -> Iterator[SiteServer]:
    with php_fpm(nginx.folders.data / "fpm") as socket:
        root = nginx.folders.sites / "s1001" / "public"
        root.mkdir(parents=True)
        (root / "index.php").write_text(PAGES)
        yield nginx.site(
            1001,
            domain=DOMAIN,
            aliases=("www.shop.example",),
            redirects={"old.example": DOMAIN},
            serves=Php(root=str(root), socket=str(socket)),
            previews=PREVIEWS,
        )


@pytest.fixture
async def served(nginx: Sites, shop: SiteServer) -> Sites:
    assert isinstance(shop.serves, Php)
    await accepting(Path(shop.serves.socket))
    assert await nginx.generations.start([shop, nginx.site(1002)]) == {}
    return nginx


async def say(nginx: Sites, what: str, host: str = PREVIEW, **more: Any) -> httpx.Response:
    async with browser(nginx) as someone:
        return await someone.get("/", params={"say": what, **more}, headers={"Host": host})


def browser(nginx: Sites, address: str = "127.0.0.1") -> httpx.AsyncClient:
    transport = httpx.AsyncHTTPTransport(verify=False, local_address=address)
    return httpx.AsyncClient(transport=transport, base_url=f"http://127.0.0.1:{nginx.ports.http}", timeout=30)


async def test_every_address_of_the_site_becomes_one_of_the_preview(served: Sites) -> None:
    text = (
        '<a href="https://shop.example/a">http://shop.example //shop.example/b</a> https://SHOP.example?x'
        r' {"a":"https:\/\/shop.example\/wp-json\/","b":"http:\/\/www.shop.example","c":"\/\/shop.example"}'
        f" https://www.shop.example/ https://shop.example:{served.ports.https}/p https://old.example/o"
        " data-x='{&quot;a&quot;:&quot;https://shop.example&quot;}' https://shop.example\n"
        f"{OTHERS}"
    )
    here, www = f"http://{PREVIEW}:{served.ports.http}", f"http://{WWW}:{served.ports.http}"
    escaped, escaped_www = (each.replace("/", r"\/") for each in (here, www))

    answers = {
        type_: (await say(served, "", text=text, type=type_)).text
        for type_ in ("text/html; charset=utf-8", "text/css", "application/javascript", "application/json", "image/png")
    }

    translated = (
        f'<a href="{here}/a">{here} {here.removeprefix("http:")}/b</a> {here}?x'
        rf' {{"a":"{escaped}\/wp-json\/","b":"{escaped_www}","c":"{escaped.removeprefix("http:")}"}}'
        f" {www}/ {here}/p {here}/o"
        f" data-x='{{&quot;a&quot;:&quot;{here}&quot;}}' {here}\n"
        f"{OTHERS}"
    )
    untranslated = answers.pop("image/png")
    assert answers == dict.fromkeys(answers, translated)
    assert untranslated == text
    assert (await say(served, "", DOMAIN, text=text)).text == text


@pytest.mark.parametrize(
    ("told", "leads"),
    [
        ("https://shop.example/a?b=c#d", "http://PREVIEW/a?b=c#d"),
        ("http://shop.example", "http://PREVIEW"),
        ("//shop.example/", "http://PREVIEW/"),
        ("https://shop.example:HTTPS/x", "http://PREVIEW/x"),
        ("https://shop.example:443?x", "http://PREVIEW?x"),
        ("https://shop.example:9000/x", "https://shop.example:9000/x"),
        ("https://www.shop.example/", "http://WWW/"),
        ("https://old.example/o", "http://PREVIEW/o"),
        ("/here?x=https://shop.example/", "/here?x=https://shop.example/"),
        ("https://shop.example.evil.example/", "https://shop.example.evil.example/"),
        ("https://other.example/", "https://other.example/"),
    ],
)
async def test_redirects_stay_at_the_preview(served: Sites, told: str, leads: str) -> None:
    answer = await say(served, "to", to=told.replace("HTTPS", str(served.ports.https)))

    here = {"PREVIEW": f"{PREVIEW}:{served.ports.http}", "WWW": f"{WWW}:{served.ports.http}"}
    assert answer.headers["Location"] == re.sub("PREVIEW|WWW", lambda found: here[found[0]], leads)


async def test_a_site_of_many_names_is_previewed(served: Sites) -> None:
    names = tuple(f"n{number}.example" for number in range(30))
    previews = {f"{name.replace('.', '-')}.previews.example": name for name in ("site1003.example", *names)}

    assert await served.generations.apply({1003: served.site(1003, aliases=names, previews=previews)}) == {}

    assert (await served.visit("n29-example.previews.example")).text == "page of 1003"


async def test_cookies_are_the_previews_and_work_without_tls(served: Sites) -> None:
    cookies = (await say(served, "cookies")).headers.get_list("Set-Cookie")

    assert cookies == [f"own=1; domain={PREVIEW}; HttpOnly", f"above=2; domain={PREVIEW}", "plain=3"]


async def test_search_engines_are_kept_away_and_no_header_is_for_the_sites_own_name(served: Sites) -> None:
    answer, robots = await say(served, "headers"), await served.visit(PREVIEW, "/robots.txt")

    assert answer.headers.get_list("X-Robots-Tag") == ["noindex, nofollow"]
    assert not {"strict-transport-security", "content-security-policy", "link"} & answer.headers.keys()
    assert answer.headers.get_list("X-Content-Type-Options") == ["nosniff"]
    assert robots.text == "User-agent: *\nDisallow: /\n"
    assert (await served.visit(PREVIEW, "/.well-known/acme-challenge/none")).headers["X-Robots-Tag"]


async def test_the_site_is_asked_as_at_its_own_name_by_who_really_visits(served: Sites) -> None:
    log = served.folders.site_logs / "s1001" / "access.log"
    before = len(log.read_text().splitlines())
    here = f"http://{PREVIEW}:{served.ports.http}"
    claimed = {
        "Host": PREVIEW,
        "X-Svc-Visitor": "192.0.2.66",
        "X-Real-IP": "192.0.2.66",
        "X-Forwarded-For": "192.0.2.66",
        "X-Forwarded-Host": "evil.example",
        "Origin": here,
        "Referer": f"{here}/wp-login.php?a=b",
    }
    body = b"x" * 3_000_000

    async with browser(served, "127.0.0.9") as someone:
        asked = json.loads((await someone.post("/?say=asked", headers=claimed, content=body)).text)
        other_port = {**claimed, "Origin": f"http://{PREVIEW}:9000", "Referer": f"http://{PREVIEW}:9000/x"}
        of_other_port = json.loads((await someone.get("/?say=asked", headers=other_port)).text)
        foreign = {**claimed, "Origin": "http://evil.example", "Referer": f"http://evil.example/{here}"}
        forged = json.loads((await someone.get("/?say=asked", headers=foreign)).text)
        direct = {**claimed, "Host": DOMAIN}
        own = json.loads((await someone.get("/?say=asked", headers=direct)).text)

    own_name = f"{DOMAIN}:{served.ports.https}"
    assert {each["REMOTE_ADDR"] for each in (asked, forged, own)} == {"127.0.0.9"}
    assert asked["HTTP_X_SVC_VISITOR"] == "127.0.0.9"
    assert (asked["HTTP_HOST"], asked["SERVER_NAME"], asked["HTTPS"]) == (own_name, DOMAIN, "on")
    assert (asked["SERVER_PORT"], asked["REQUEST_SCHEME"]) == (str(served.ports.https), "https")
    assert (asked["SERVER_ADDR"], asked["REQUEST_METHOD"]) == ("127.0.0.1", "POST")
    assert (asked["HTTP_ORIGIN"], asked["HTTP_REFERER"]) == (
        f"https://{own_name}",
        f"https://{own_name}/wp-login.php?a=b",
    )
    assert asked["BODY"] == hashlib.md5(body).hexdigest()
    assert (forged["HTTP_ORIGIN"], forged["HTTP_REFERER"]) == ("http://evil.example", f"http://evil.example/{here}")
    assert (of_other_port["HTTP_ORIGIN"], of_other_port["HTTP_REFERER"]) == (
        other_port["Origin"],
        other_port["Referer"],
    )
    assert "HTTPS" not in own
    lines = log.read_text().splitlines()[before:]
    assert [line.split()[0] for line in lines] == ["127.0.0.9"] * 4


async def test_a_preview_opens_its_own_site_whatever_host_is_claimed(served: Sites) -> None:
    async with await trio.open_tcp_stream("127.0.0.1", served.ports.http) as stream:
        line = f"GET http://{PREVIEW}/?say=asked HTTP/1.1\r\nHost: site1002.example\r\nConnection: close\r\n\r\n"
        await stream.send_all(line.encode())
        answer = b"".join([part async for part in stream]).decode()

    assert f'"HTTP_HOST":"{DOMAIN}:{served.ports.https}"' in answer
    assert json.loads((await say(served, "asked", WWW)).text)["SERVER_NAME"] == "www.shop.example"
    with pytest.raises(httpx.RemoteProtocolError):
        await served.visit("other.previews.example")


async def test_nobody_but_the_web_server_can_pass_a_visitors_address_on(served: Sites) -> None:
    there = preview_socket(served.folders).stat()

    assert stat.S_IMODE(there.st_mode) == 0o660
    assert (there.st_uid, there.st_gid) == (0, grp.getgrnam("www-data").gr_gid)
    assert {socket.path for socket in served.launcher.services[NGINX].sockets} >= {preview_socket(served.folders)}


async def test_closed_paths_are_closed_at_the_preview(served: Sites, shop: SiteServer) -> None:
    logins = (Login(login="ada", verifier=hash_random_password("correct-horse")),)
    protected = (ProtectedPath(path="/members", logins=logins),)
    await served.generations.apply({1001: shop.model_copy(update={"denied": ("/private",), "protected": protected})})
    password = f"Basic {base64.b64encode(b'ada:correct-horse').decode()}"

    found = [(await served.visit(PREVIEW, path)).status_code for path in ("/private", "//x/../private", "/members/x")]
    opened = await served.visit(PREVIEW, "/members/x?text=in", Authorization=password)

    assert found == [403, 403, 401]
    assert (opened.status_code, opened.text) == (200, "in")


async def test_a_suspended_site_is_suspended_at_its_preview_and_a_deleted_one_is_gone(
    served: Sites, shop: SiteServer
) -> None:
    await served.generations.apply({1001: shop.model_copy(update={"serves": Suspended()})})
    suspended = await served.visit(PREVIEW)
    await served.generations.apply({1001: None})

    assert (suspended.status_code, suspended.headers["X-Robots-Tag"]) == (503, "noindex, nofollow")
    with pytest.raises(httpx.RemoteProtocolError):
        await served.visit(PREVIEW)
    # As of a worker of before the deletion, which still had the preview.
    async with await trio.open_unix_socket(str(preview_socket(served.folders))) as stream:
        await stream.send_all(f"GET / HTTP/1.1\r\nHost: {DOMAIN}\r\n\r\n".encode())
        assert await stream.receive_some() == b""


async def test_a_site_that_forces_https_is_shown_by_its_preview_and_has_no_hsts_there(
    served: Sites, shop: SiteServer
) -> None:
    forced = {"certificate": served.certificate("forced"), "force_https": True, "hsts": True}
    assert await served.generations.apply({1001: shop.model_copy(update=forced)}) == {}

    answer = await say(served, "")

    assert (answer.status_code, answer.text) == (200, "front")
    assert "Strict-Transport-Security" not in answer.headers
    assert (await served.visit(DOMAIN)).status_code == 301


async def test_a_websocket_passes(served: Sites) -> None:
    path = served.folders.data / "app.sock"
    listening = trio.socket.socket(trio.socket.AF_UNIX)
    await listening.bind(str(path))
    path.chmod(0o666)
    listening.listen()
    site = served.site(1003, serves=App(socket=str(path)), previews={"app.previews.example": "site1003.example"})
    await served.generations.apply({1003: site})

    async def upgrade(stream: trio.SocketStream) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += await stream.receive_some()
        assert b"\r\nUpgrade: websocket\r\n" in head
        assert b"\r\nX-Forwarded-For: 127.0.0.1\r\n" in head
        assert b"\r\nX-Forwarded-Proto: https\r\n" in head
        await stream.send_all(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
        await stream.send_all(await stream.receive_some())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, upgrade, [trio.SocketListener(listening)])
        async with await trio.open_tcp_stream("127.0.0.1", served.ports.http) as stream:
            await stream.send_all(
                b"GET / HTTP/1.1\r\nHost: app.previews.example\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
            )
            head = await stream.receive_some()
            await stream.send_all(b"frame")
            echoed = await stream.receive_some()
        nursery.cancel_scope.cancel()

    assert head.startswith(b"HTTP/1.1 101 ")
    assert echoed == b"frame"


def serve_certificate(
    nginx: Sites, certificate: Certificate, *, domain: str = "previews.example", chain: str | None = None
) -> None:
    """Have the previews use it from the next change on."""
    text, key = Path(certificate.chain).read_text(), Path(certificate.key).read_bytes()
    put_preview_certificate(nginx.folders, domain, fingerprint(certificate), chain or text, key)


def der(certificate: Certificate) -> bytes:
    return ssl.PEM_cert_to_DER_cert(Path(certificate.chain).read_text())


async def test_all_previews_share_a_wildcard_and_it_is_renewed(served: Sites, shop: SiteServer) -> None:
    first, second = served.certificate("first"), served.certificate("second")
    elsewhere = served.site(1003, previews={"site3.other.example": "site1003.example"})
    sites = [shop, served.site(1002), elsewhere]
    shown = []
    for certificate in (first, second):
        serve_certificate(served, certificate)
        # The second time nothing but the certificate has changed.
        assert await served.generations.start(sites) == {}
        shown.append(await served.shown(PREVIEW))

    page = await served.visit_tls(PREVIEW, "/?text=https://shop.example/%20http://shop.example%3C")
    cookies = (await served.visit_tls(PREVIEW, "/?say=cookies")).headers.get_list("Set-Cookie")
    plain = await served.visit(PREVIEW, "/a?b=c")
    here = f"https://{PREVIEW}:{served.ports.https}"
    assert shown == [der(each) for each in (first, second)]
    assert page.text == f"{here}/ {here}<"
    assert page.headers["X-Robots-Tag"] == "noindex, nofollow"
    assert cookies[0] == f"own=1; domain={PREVIEW}; secure; HttpOnly; SameSite=None"
    assert (plain.status_code, plain.headers["Location"]) == (301, f"{here}/a?b=c")
    assert (await served.visit("site3.other.example")).text == "page of 1003"
    for name in (DOMAIN, "site1002.example", "other.previews.example", "site3.other.example", "unknown.example"):
        with pytest.raises(ssl.SSLError):
            await served.shown(name)

    remove_preview_certificate(served.folders)
    assert await served.generations.start(sites) == {}
    with pytest.raises(ssl.SSLError):
        await served.shown(PREVIEW)


async def test_the_end_of_the_certificate_disconnects_nobody(served: Sites, shop: SiteServer) -> None:
    certificate = served.certificate("ended")
    serve_certificate(served, certificate)
    sites = [shop, served.site(1002), served.site(1003, previews={"c.previews.example": "site1003.example"})]
    assert await served.generations.start(sites) == {}
    remove_preview_certificate(served.folders)
    broken = shop.model_copy(update={"serves": StaticRoot(root="/etc")})

    async with served.watched(sites[1:]) as problems:
        # Before all sites are served without it, one of them changes, and then one of them cannot be rendered.
        changed = await served.generations.apply({1002: served.site(1002, aliases=("more.example",))})
        after_change = [await served.shown(each) for each in (PREVIEW, "c.previews.example")]
        refused = await served.generations.start([broken, *sites[1:]])
        of_refused = await served.shown(PREVIEW)
        plain = (await served.visit("c.previews.example")).text
        again = await served.generations.start(sites)

    assert problems == []
    assert (changed, list(refused), again) == ({}, [1001], {})
    assert {*after_change, of_refused} == {der(certificate)}
    assert plain == "page of 1003"
    for name in (PREVIEW, "c.previews.example"):
        with pytest.raises(ssl.SSLError):
            await served.shown(name)
    assert (await say(served, "", DOMAIN)).text == "front"


async def test_keys_of_former_domains_go_once_no_site_needs_them(served: Sites, shop: SiteServer) -> None:
    def domains() -> set[str]:
        return {each.name for each in (served.folders.certificates / "previews").iterdir() if not each.is_symlink()}

    moved = shop.model_copy(update={"previews": {"shop-example-0a1b2c.elsewhere.example": DOMAIN}})
    serve_certificate(served, served.certificate("former"))
    assert await served.generations.start([shop]) == {}
    serve_certificate(served, served.certificate("later"), domain="elsewhere.example")
    assert await served.generations.apply({}) == {}
    before = domains()

    assert await served.generations.start([moved]) == {}
    after = domains()
    remove_preview_certificate(served.folders)
    assert await served.generations.apply({}) == {}
    still_served = domains()
    assert await served.generations.start([moved]) == {}

    assert before == {"previews.example", "elsewhere.example"}
    assert after == still_served == {"elsewhere.example"}
    assert domains() == set()
    assert (await served.visit("shop-example-0a1b2c.elsewhere.example")).text == "front"


async def test_a_certificate_that_nginx_refuses_costs_no_site_its_server(served: Sites, shop: SiteServer) -> None:
    good, bad = served.certificate("good"), served.certificate("bad")
    serve_certificate(served, good)
    assert await served.generations.start([shop, served.site(1002)]) == {}
    serve_certificate(served, bad, chain="-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")

    with pytest.raises(NginxError, match="rejected"):
        await served.generations.start([shop, served.site(1002)])
    with pytest.raises(NginxError, match="rejected"):
        await served.generations.apply({1003: served.site(1003)})

    assert (await say(served, "", DOMAIN)).text == "front"
    assert (await served.visit("site1002.example")).text == "page of 1002"
    assert await served.shown(PREVIEW) == der(good)
    remove_preview_certificate(served.folders)
    assert await served.generations.start([shop]) == {}


async def test_a_renewal_during_a_change_does_not_refuse_it(served: Sites, shop: SiteServer) -> None:
    before, renewed = served.certificate("before"), served.certificate("renewed")
    serve_certificate(served, before)
    served.launcher.before_reload = lambda: serve_certificate(served, renewed)
    try:
        refused = await served.generations.apply({1001: shop})
    finally:
        served.launcher.before_reload = lambda: None

    shown = await served.shown(PREVIEW)
    remove_preview_certificate(served.folders)
    assert refused == {}
    assert shown == der(before)
