"""What visitors get of a real nginx while its sites change, and when a change goes wrong."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import struct
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from ipaddress import IPv4Address
from pathlib import Path

import httpx
import pytest
import trio

from svc_webhost.crypt import hash_random_password
from svc_webhost.log_writer import KEPT, LARGEST
from svc_webhost.nginx import App, Login, PathRedirect, Php, ProtectedPath, Proxy, Suspended
from svc_webhost.nginx.render import SCHEDULED_AGENT
from tests.support.launchers import written
from tests.support.nginx import Sites, nginx_sites

pytestmark = [pytest.mark.system, pytest.mark.isolated]


@pytest.fixture
def nginx() -> Iterator[Sites]:
    with nginx_sites() as sites:
        yield sites


async def test_a_site_is_served_and_an_unknown_host_is_shown_nothing(nginx: Sites) -> None:
    refused = await nginx.generations.start([nginx.site(1001)])

    assert refused == {}
    assert (await nginx.visit("site1001.example")).text == "page of 1001"
    with pytest.raises(httpx.RemoteProtocolError):
        await nginx.visit("unknown.example")
    with pytest.raises(ssl.SSLError):
        await nginx.shown("site1001.example")
    with pytest.raises(ssl.SSLError):
        await nginx.shown("unknown.example")


async def test_a_server_without_sites_runs_and_shows_nothing(nginx: Sites) -> None:
    await nginx.generations.start([])

    with pytest.raises(httpx.RemoteProtocolError):
        await nginx.visit("unknown.example")


# Libraries and the output of build tools (PDF.js, Vite: nextcloud/server#42989, hestiacp/hestiacp#2007); text without
# a character set of its own; HTML, which may name one within.
TYPES = {
    "m.mjs": "application/javascript; charset=utf-8",
    "a.webmanifest": "application/manifest+json",
    "a.ttf": "font/ttf",
    "a.vtt": "text/vtt; charset=utf-8",
    "a.csv": "text/csv; charset=utf-8",
    "a.txt": "text/plain; charset=utf-8",
    "a.css": "text/css; charset=utf-8",
    "a.glb": "model/gltf-binary",
    "a.svg": "image/svg+xml",
    "a.html": "text/html",
    "a.unknown": "application/octet-stream",
}


async def test_files_have_the_types_that_browsers_ask_for(nginx: Sites) -> None:
    site, root = nginx.site(1001), nginx.folders.sites / "s1001" / "public"
    for name in TYPES:
        (root / name).write_text("x")
        (root / name).chmod(0o644)
    await nginx.generations.start([site])

    found = {name: (await nginx.visit("site1001.example", f"/{name}")).headers["Content-Type"] for name in TYPES}

    assert found == TYPES
    assert "duplicate extension" not in nginx.folders.nginx_output.read_text()


async def test_the_certificate_that_is_shown_changes_with_the_sites(nginx: Sites) -> None:
    first, second = nginx.certificate("first"), nginx.certificate("second")
    await nginx.generations.start([nginx.site(1001, certificate=first), nginx.site(1002)])
    before = await nginx.shown("site1001.example")

    await nginx.generations.apply({1001: nginx.site(1001, certificate=second, force_https=True)})

    assert before == ssl.PEM_cert_to_DER_cert(Path(first.chain).read_text())
    assert await nginx.shown("site1001.example") == ssl.PEM_cert_to_DER_cert(Path(second.chain).read_text())
    assert (await nginx.visit_tls("site1001.example")).text == "page of 1001"
    redirected = await nginx.visit("site1001.example", "/a?b=c")
    assert redirected.status_code == 301
    assert redirected.headers["Location"] == f"https://site1001.example:{nginx.ports.https}/a?b=c"
    # The connection is site 1001's, and the host one that has no certificate.
    with pytest.raises(httpx.RemoteProtocolError):
        await nginx.visit_tls("site1002.example", name="site1001.example")


async def test_a_certificate_renewed_in_its_place_is_taken_up(nginx: Sites) -> None:
    certificate = nginx.certificate("own")
    site = nginx.site(1001, certificate=certificate)
    await nginx.generations.start([site])
    other = nginx.certificate("other")
    shutil.copy(other.chain, certificate.chain)
    shutil.copy(other.key, certificate.key)

    await nginx.generations.apply({1001: site})

    assert await nginx.shown("site1001.example") == ssl.PEM_cert_to_DER_cert(Path(other.chain).read_text())


async def test_a_suspended_site_says_so_and_still_answers_challenges(nginx: Sites) -> None:
    await nginx.generations.start([nginx.site(1001, serves=Suspended(reason="unpaid"))])
    (nginx.folders.challenges / "token").write_text("token.proof")

    page = await nginx.visit("site1001.example", "/anything")

    assert page.status_code == 503
    assert "suspended" in page.text
    assert "unpaid" not in page.text
    assert page.headers["Content-Type"].startswith("text/html")
    assert page.headers["Retry-After"] == "3600"
    challenge = await nginx.visit("site1001.example", "/.well-known/acme-challenge/token")
    assert (challenge.status_code, challenge.text) == (200, "token.proof")
    assert (await nginx.visit("not.a.site.example", "/.well-known/acme-challenge/token")).text == "token.proof"
    assert (await nginx.visit("site1001.example", "/.well-known/acme-challenge/none")).status_code == 404


async def test_redirects_lead_where_they_say(nginx: Sites) -> None:
    site = nginx.site(
        1001,
        redirects={"www.site1001.example": "site1001.example"},
        path_redirects=(
            PathRedirect(source="/alt", target="/neu", status=302),
            PathRedirect(source="/blog", target="https://blog.example/", below=True),
        ),
    )
    await nginx.generations.start([site])

    async def target(host: str, path: str) -> tuple[int, str]:
        answer = await nginx.visit(host, path)
        return answer.status_code, answer.headers["Location"]

    assert await target("www.site1001.example", "/a?b=c") == (
        301,
        f"http://site1001.example:{nginx.ports.http}/a?b=c",
    )
    assert await target("site1001.example", "/alt?x=1") == (302, "/neu?x=1")
    assert await target("site1001.example", "/blog/2026/post") == (301, "https://blog.example/")


async def test_what_begins_with_a_dot_is_not_served(nginx: Sites) -> None:
    site = nginx.site(1001)
    root = nginx.folders.sites / "s1001" / "public"
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("secret")
    (root / ".env").write_text("secret")
    (root / ".well-known").mkdir()
    (root / ".well-known" / "security.txt").write_text("contact")
    await nginx.generations.start([site])

    answers = [(await nginx.visit(site.domain, path)).status_code for path in ("/.env", "/.git/config", "/.git/")]
    refused = [(await nginx.visit(site.domain, path)).status_code for path in ("/.htpasswd", "/folder/.htaccess")]

    assert answers == [404, 404, 404]
    assert refused == [403, 403], "as Apache has it, there or not"
    assert (await nginx.visit(site.domain, "/.well-known/security.txt")).text == "contact"


async def test_a_link_to_another_sites_file_is_not_followed(nginx: Sites) -> None:
    mine, other = nginx.site(1001), nginx.site(1002)
    home, victim = nginx.folders.sites / "s1001", nginx.folders.sites / "s1002"
    (home / "public" / "own.txt").write_text("mine")
    (home / "public" / "inner").symlink_to("own.txt")
    (home / "public" / "stolen").symlink_to(victim / "public" / "index.html")
    (home / "public" / "folder").symlink_to(victim / "public")
    for folder, account in ((home, 61001), (victim, 61002)):
        for path in (folder, *folder.rglob("*")):
            os.lchown(path, account, account)
    await nginx.generations.start([mine, other])

    assert (await nginx.visit(mine.domain, "/inner")).text == "mine"
    assert (await nginx.visit(mine.domain, "/stolen")).status_code == 404
    assert (await nginx.visit(mine.domain, "/folder/index.html")).status_code == 404

    # The document root itself is the account's to replace.
    (home / "public").rename(home / "before")
    (home / "public").symlink_to(victim / "public")
    os.lchown(home / "public", 61001, 61001)
    assert (await nginx.visit(mine.domain, "/index.html")).status_code == 404
    assert (await nginx.visit(other.domain, "/index.html")).text == "page of 1002"


async def test_each_site_has_logs_of_its_own(nginx: Sites) -> None:
    await nginx.generations.start([nginx.site(1001), nginx.site(1002)])

    await nginx.visit("site1001.example", "/only-here")

    logs = nginx.folders.site_logs
    assert "/only-here" in (logs / "s1001" / "access.log").read_text()
    assert (logs / "s1002" / "access.log").read_text() == ""
    assert (logs / "s1001").stat().st_mode & 0o777 == 0o750


async def test_the_log_has_all_of_a_request_but_what_a_scheduled_visit_may_have_for_a_key(nginx: Sites) -> None:
    await nginx.generations.start([nginx.site(1001)])

    await nginx.visit("site1001.example", "/search?q=shoes", **{"User-Agent": "curl"})
    await nginx.visit("site1001.example", "/tasks?key=hunter2", **{"User-Agent": SCHEDULED_AGENT})

    # A request is logged once it is answered.
    log = await written(nginx.folders.site_logs / "s1001" / "access.log", "GET /tasks")
    [search, task] = log.splitlines()
    assert '"GET /search?q=shoes HTTP/1.1" 404' in search
    assert search.endswith('"-" "curl"')
    assert f'"GET /tasks HTTP/1.1" 404 {task.split()[9]} "-" "{SCHEDULED_AGENT}"' in task


async def test_another_account_reads_nothing_of_the_web_servers(nginx: Sites) -> None:
    gone = nginx.site(1002, certificate=nginx.certificate("gone"))
    Path(gone.certificate.chain if gone.certificate else "").unlink()
    refused = await nginx.generations.start([nginx.site(1001), gone])
    with (nginx.folders.nginx / "error.log").open("r+b") as log:
        log.truncate(LARGEST)
    await nginx.generations.rotate_logs()
    kept = [path for folder in (nginx.folders.nginx, nginx.folders.site_logs) for path in (folder, *folder.rglob("*"))]

    read = await trio.run_process(
        ["/bin/sh", "-c", 'for each; do if [ -r "$each" ]; then echo "$each"; fi; done', "sh", *map(str, kept)],
        user=61001,
        group=61001,
        extra_groups=[],
        capture_stdout=True,
    )

    assert [*refused] == [1002]
    names = {each.name for each in kept}
    assert {"trial", "generations", "error.log", "error.log.1", "access.log", "nginx.out"} <= names
    assert read.stdout.split() == []
    assert (await nginx.visit("site1001.example")).text == "page of 1001"


async def test_a_start_that_changes_nothing_reloads_nothing(nginx: Sites) -> None:
    sites = nginx.sites(3)
    await nginx.generations.start(sites)
    master = nginx.master

    await nginx.again().start(sites)

    assert (nginx.launcher.reloads, nginx.master) == (0, master)

    await nginx.again().start([*sites[:2], nginx.site(1010)])

    assert (nginx.launcher.reloads, nginx.master) == (1, master)
    assert (await nginx.visit("site1010.example")).text == "page of 1010"
    with pytest.raises(httpx.RemoteProtocolError):
        await nginx.visit(sites[2].domain)


async def test_five_generations_are_kept_and_share_the_files_that_did_not_change(nginx: Sites) -> None:
    sites = nginx.sites(2)
    await nginx.generations.start(sites)

    for turn in range(6):
        await nginx.generations.apply({1001: nginx.site(1001, aliases=(f"alias{turn}.example",))})

    folder = nginx.folders.nginx / "generations"
    assert sorted(int(each.name) for each in folder.iterdir()) == [3, 4, 5, 6, 7]
    assert len({(folder / str(each) / "sites" / "s1002.conf").stat().st_ino for each in (3, 5, 7)}) == 1


@asynccontextmanager
async def answering(listener: trio.SocketListener) -> AsyncIterator[None]:
    """A server that answers with the head of the request."""

    async def answer(stream: trio.SocketStream) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += await stream.receive_some()
        kind = b"text/plain\r\nX-Frame-Options: DENY"
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n" % (kind, len(head)))
        await stream.send_all(b"Connection: close\r\n\r\n" + head)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, answer, [listener])
        yield
        nursery.cancel_scope.cancel()


async def _listening(path: Path) -> trio.SocketListener:
    listening = trio.socket.socket(trio.socket.AF_UNIX)
    await listening.bind(str(path))
    path.chmod(0o666)
    listening.listen()
    return trio.SocketListener(listening)


async def test_an_application_hears_who_visits_and_not_what_they_claim(nginx: Sites) -> None:
    path = nginx.folders.data / "app.sock"
    await nginx.generations.start([nginx.site(1001, serves=App(socket=str(path)))])

    async with answering(await _listening(path)):
        answer = await nginx.visit(
            "site1001.example", "/a%20b?c=d", **{"X-Forwarded-For": "10.0.0.1", "Proxy": "http://evil.example/"}
        )

    head, *rest = answer.text.split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in rest if line)}
    assert head == "GET /a%20b?c=d HTTP/1.1"
    assert headers["host"] == headers["x-forwarded-host"] == f"site1001.example:{nginx.ports.http}"
    assert headers["x-forwarded-for"] == headers["x-real-ip"] == "127.0.0.1"
    assert headers["x-forwarded-proto"] == "http"
    assert "proxy" not in headers
    # What the application says itself stays, and what it does not say is added.
    assert answer.headers.get_list("X-Frame-Options") == ["DENY"]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Server"] == "nginx"


async def test_an_application_is_told_of_no_password_that_is_the_web_servers(nginx: Sites) -> None:
    path = nginx.folders.data / "app.sock"
    logins = (Login(login="ada", verifier=hash_random_password("correct-horse")),)
    protected = (ProtectedPath(path="/members", logins=logins),)
    await nginx.generations.start([nginx.site(1001, serves=App(socket=str(path)), protected=protected)])
    ours = f"Basic {b64encode(b'ada:correct-horse').decode()}"

    async with answering(await _listening(path)):
        refused = await nginx.visit("site1001.example", "/members/a")
        inside = await nginx.visit("site1001.example", "/members/a", Authorization=ours)
        elsewhere = await nginx.visit("site1001.example", "/api", Authorization="Bearer theirs")

    assert (refused.status_code, inside.status_code) == (401, 200)
    assert "authorization" not in inside.text.lower()
    assert "\r\nAuthorization: Bearer theirs\r\n" in elsewhere.text


def http(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def fastcgi(body: bytes) -> bytes:
    """One record of output, its end, and the end of the request (the FastCGI specification, section 3.3)."""
    said = b"Content-Type: text/plain\r\n\r\n" + body
    output, end = struct.pack("!BBHHBx", 1, 6, 1, len(said), 0), struct.pack("!BBHHBx", 1, 6, 1, 0, 0)
    return output + said + end + struct.pack("!BBHHBxIBxxx", 1, 3, 1, 8, 0, 0, 0)


@pytest.mark.parametrize("kilobytes", [4, 8, 16, 32])
@pytest.mark.parametrize("answer", [http, fastcgi])
async def test_an_answer_that_is_half_sent_when_nginx_reloads_comes_whole(
    nginx: Sites, answer: Callable[[bytes], bytes], kilobytes: int
) -> None:
    """Its first part has the size of what programs write at once."""
    path, begun, go_on = nginx.folders.data / "app.sock", trio.Event(), trio.Event()
    body = b"a page " * 8000
    serves: App | Php = App(socket=str(path))
    if answer is fastcgi:
        serves = Php(root=str(nginx.folders.sites / "s1001" / "public"), socket=str(path))
    site = nginx.site(1001, serves=serves)
    (nginx.folders.sites / "s1001" / "public" / "index.php").touch()

    async def say(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(answer(body)[: kilobytes << 10])
        begun.set()
        await go_on.wait()
        with suppress(trio.BrokenResourceError):
            await stream.send_all(answer(body)[kilobytes << 10 :])

    await nginx.generations.start([site])
    old = nginx.workers()
    came: list[bytes] = []

    async def visit() -> None:
        came.append((await nginx.visit(site.domain)).content)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, say, [await _listening(path)])
        async with trio.open_nursery() as visitors:
            visitors.start_soon(visit)
            await begun.wait()
            await nginx.generations.apply({1002: nginx.site(1002)})
            with trio.fail_after(60):
                while any(title == "nginx: worker process" for pid, title in nginx.workers().items() if pid in old):
                    await trio.sleep(0.01)  # Until all that are left have heard that they end.
            go_on.set()
        nursery.cancel_scope.cancel()

    assert came == [body]


async def ask_for_one_host_and_claim_another(nginx: Sites, host: str, path: str) -> str:
    async with await trio.open_tcp_stream("127.0.0.1", nginx.ports.http) as stream:
        await stream.send_all(
            f"GET http://{host}{path} HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n".encode()
        )
        return b"".join([part async for part in stream]).decode()


async def test_an_application_hears_the_host_that_was_asked_for_and_not_the_claimed_one(nginx: Sites) -> None:
    path = nginx.folders.data / "app.sock"
    await nginx.generations.start([nginx.site(1001, serves=App(socket=str(path)))])

    async with answering(await _listening(path)):
        answer = await ask_for_one_host_and_claim_another(nginx, "site1001.example", "/")

    assert f"\r\nHost: site1001.example:{nginx.ports.http}\r\n" in answer
    assert f"\r\nX-Forwarded-Host: site1001.example:{nginx.ports.http}\r\n" in answer
    assert "evil.example" not in answer


async def test_a_proxied_site_that_is_down_harms_itself_alone(nginx: Sites) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    proxy = Proxy(host="backend.example", port=port, addresses=(IPv4Address("127.0.0.1"),))
    (nginx.folders.challenges).mkdir()
    (nginx.folders.challenges / "token").write_text("proof")

    async with answering(listener):
        refused = await nginx.generations.start([nginx.site(1001, serves=proxy), nginx.site(1002)])
        answered = await nginx.visit("site1001.example", "/x")
    await listener.aclose()

    assert refused == {}
    assert answered.text.startswith("GET /x HTTP/1.1")
    assert (await nginx.visit("site1001.example", "/x")).status_code == 502
    assert (await nginx.visit("site1001.example", "/.well-known/acme-challenge/token")).text == "proof"
    assert (await nginx.visit("site1002.example")).text == "page of 1002"


async def test_only_browsers_that_come_by_https_are_told_to_stay(nginx: Sites) -> None:
    certificate = nginx.certificate("own")
    await nginx.generations.start([nginx.site(1001, certificate=certificate, hsts=True)])

    secure, plain = await nginx.visit_tls("site1001.example"), await nginx.visit("site1001.example")

    assert secure.headers["Strict-Transport-Security"] == "max-age=31536000"
    assert "Strict-Transport-Security" not in plain.headers
    assert plain.headers["X-Frame-Options"] == "SAMEORIGIN"


async def test_old_versions_of_tls_are_rejected(nginx: Sites) -> None:
    await nginx.generations.start([nginx.site(1001, certificate=nginx.certificate("own"))])

    def offered(version: ssl.TLSVersion) -> str | None:
        context = ssl._create_unverified_context()
        context.minimum_version = context.maximum_version = version
        # Also what OpenSSL itself would not offer any more.
        context.set_ciphers("ALL:@SECLEVEL=0")
        with socket.create_connection(("127.0.0.1", nginx.ports.https), timeout=30) as plain:
            with context.wrap_socket(plain, server_hostname="site1001.example") as secure:
                return secure.version()

    with pytest.warns(DeprecationWarning, match="TLSv1_1"), pytest.raises((ssl.SSLError, ConnectionError)):
        await trio.to_thread.run_sync(offered, ssl.TLSVersion.TLSv1_1)
    assert await trio.to_thread.run_sync(offered, ssl.TLSVersion.TLSv1_2) == "TLSv1.2"


async def test_a_large_log_gets_a_new_file_and_no_line_is_lost(nginx: Sites) -> None:
    await nginx.generations.start([nginx.site(1001), nginx.site(1002)])
    log = nginx.folders.site_logs / "s1001" / "access.log"
    await nginx.visit("site1001.example", "/first")

    for turn in range(6):
        with log.open("r+b") as file:
            # A hole, which takes no room.
            file.truncate(LARGEST)
        assert await nginx.generations.rotate_logs() == 1
        await nginx.visit("site1001.example", f"/turn{turn}")

    assert await nginx.generations.rotate_logs() == 0
    assert nginx.launcher.reloads == 6
    assert "/turn5" in log.read_text()
    assert b"/turn4" in (log.parent / "access.log.1").read_bytes()
    assert b"/turn1" in (log.parent / "access.log.4").read_bytes()
    assert sorted(each.name for each in log.parent.glob("access*")) == [
        "access.log",
        *(f"access.log.{number}" for number in range(1, KEPT + 1)),
    ]
    assert sorted(each.name for each in (nginx.folders.site_logs / "s1002").iterdir()) == ["access.log", "error.log"]


PHP_FPM = "/usr/sbin/php-fpm8.2"


async def test_php_is_run_for_its_files_and_front_controller_alone(nginx: Sites) -> None:
    socket_path, root = nginx.folders.data / "php.sock", nginx.folders.sites / "s1001" / "public"
    site = nginx.site(1001, serves=Php(root=str(root), socket=str(socket_path)))
    said = "<?php echo $_SERVER['SCRIPT_NAME'], '|', $_SERVER['PATH_INFO'] ?? '', '|', $_SERVER['QUERY_STRING'];"
    (root / "index.php").write_text(said)
    (root / "sub.php").write_text(said)
    (root / "host.php").write_text("<?php echo 'host=', $_SERVER['HTTP_HOST'], ';';")
    (root / "picture.jpg").write_text("<?php echo 'run';")
    configuration = nginx.folders.data / "fpm.conf"
    configuration.write_text(
        f"[global]\nerror_log = {nginx.folders.data}/fpm.log\n[site]\nuser = www-data\nlisten = {socket_path}\n"
        "listen.owner = www-data\npm = static\npm.max_children = 1\n"
    )

    async with trio.open_nursery() as nursery:
        command = (PHP_FPM, "--nodaemonize", "--fpm-config", str(configuration))
        nursery.start_soon(trio.run_process, command)
        with trio.fail_after(30):
            while not socket_path.exists():
                await trio.sleep(0.01)
        await nginx.generations.start([site])
        paths = ("/", "/sub.php?a=b", "/sub.php/info", "/pretty/link?x=y", "/picture.jpg/x.php", "/picture.jpg")
        answers = {path: await nginx.visit(site.domain, path) for path in paths}
        claimed = await ask_for_one_host_and_claim_another(nginx, site.domain, "/host.php")
        nursery.cancel_scope.cancel()

    assert answers["/"].text == "/index.php||"
    assert answers["/sub.php?a=b"].text == "/sub.php||a=b"
    assert answers["/sub.php/info"].text == "/sub.php|/info|"
    assert answers["/pretty/link?x=y"].text == "/index.php||x=y"
    assert answers["/picture.jpg/x.php"].status_code == 404
    assert answers["/picture.jpg"].text == "<?php echo 'run';"
    assert f"host={site.domain}:{nginx.ports.http};" in claimed
