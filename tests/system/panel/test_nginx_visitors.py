"""One visitor holds no more than a share of nginx: connections, bodies, and tries of passwords."""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from svc_webhost.accounts import SiteAccount
from svc_webhost.crypt import hash_visitors_password
from svc_webhost.nginx import Login, Php, ProtectedPath, visitors
from svc_webhost.nginx.visitors import LARGE_BODIES
from svc_webhost.postgres.sessions import children
from svc_webhost.visitors import AT_ONCE, METADATA, TABLE, NftBound, ruleset
from tests.support.apache import accepting, php_fpm
from tests.support.nginx import Sites, nginx_sites

pytestmark = [pytest.mark.system, pytest.mark.isolated]

PASSWORD = "correct-horse-battery"
HOST = "site1001.example"


@pytest.fixture
def nginx() -> Iterator[Sites]:
    with nginx_sites() as sites:
        yield sites


def client(address: str, **options: Any) -> httpx.AsyncClient:
    """Of a visitor who comes from this address."""
    return httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(local_address=address, verify=False, **options), timeout=30
    )


async def members(nginx: Sites) -> None:
    """A site that asks for a password at one of its paths."""
    ada = Login(login="ada", verifier=await hash_visitors_password(PASSWORD))
    site = nginx.site(1001, protected=(ProtectedPath(path="/members", logins=(ada,)),))
    (nginx.folders.sites / "s1001/public/members").write_text("inside")
    await nginx.generations.start([site])


async def statuses(nginx: Sites, http: httpx.AsyncClient, path: str, password: str, times: int) -> list[int]:
    url = f"http://127.0.0.1:{nginx.ports.http}{path}"
    return [(await http.get(url, headers={"Host": HOST}, auth=("ada", password))).status_code for _ in range(times)]


async def test_guesses_of_one_address_are_refused_past_a_rate_and_members_are_not(
    nginx: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visitors, "_GUESSES_A_SECOND", 1)
    monkeypatch.setattr(visitors, "_GUESSES_AT_ONCE", 40)
    monkeypatch.setattr(visitors, "_GUESSES_UNDELAYED", 40)
    await members(nginx)

    async with client("127.0.0.1") as guesser, client("127.0.0.2") as member:
        assert set(await statuses(nginx, guesser, "/", "wrong", 60)) == {200}, "nothing is asked there"
        guesses = await statuses(nginx, guesser, "/members", "wrong", 100)
        assert set(await statuses(nginx, member, "/members", PASSWORD, 30)) == {200}
    assert 40 <= guesses.count(401) < 90
    assert guesses.count(429) == 100 - guesses.count(401)


async def test_guesses_that_come_at_once_wait_and_take_no_more_of_a_worker_than_their_rate(
    nginx: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visitors, "_GUESSES_A_SECOND", 1)
    monkeypatch.setattr(visitors, "_GUESSES_UNDELAYED", 10)
    await members(nginx)
    guess = f"GET /members HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Basic YWRhOndyb25n\r\n\r\n".encode()

    with ExitStack() as stack:
        guessing = []
        for _ in range(20):
            connection = socket.create_connection(
                ("127.0.0.1", nginx.ports.http), source_address=("127.0.0.1", 0), timeout=30
            )
            guessing.append(stack.enter_context(connection))
            connection.sendall(guess)
        first = answered(guessing[0], 30)
        async with client("127.0.0.2") as member:
            assert set(await statuses(nginx, member, "/members", PASSWORD, 5)) == {200}
        at_once = [answered(each, 0.1) for each in guessing[1:]]

    assert first.startswith(b"HTTP/1.1 401 ")
    assert 9 <= sum(each.startswith(b"HTTP/1.1 401 ") for each in at_once) < 19
    assert all(each == b"" or each.startswith(b"HTTP/1.1 401 ") for each in at_once)


async def test_a_page_of_many_files_behind_a_password_is_shown_whole(nginx: Sites) -> None:
    """A browser sends the password with each of them."""
    await members(nginx)

    async with client("127.0.0.1") as member:
        assert set(await statuses(nginx, member, "/members", PASSWORD, 400)) == {200}


def begun(nginx: Sites, address: str, head: str) -> socket.socket:
    """A request whose body does not come."""
    connection = socket.create_connection(("127.0.0.1", nginx.ports.http), source_address=(address, 0), timeout=30)
    connection.sendall(f"POST /index.php HTTP/1.1\r\nHost: {HOST}\r\n{head}\r\n\r\nx".encode())
    return connection


def answered(connection: socket.socket, seconds: float) -> bytes:
    ready, _, _ = select.select([connection], [], [], seconds)
    return connection.recv(4096) if ready else b""


async def test_bodies_that_one_visitor_has_under_way_are_bounded_whatever_they_say(nginx: Sites) -> None:
    root = nginx.folders.sites / "s1001" / "public"
    with php_fpm(nginx.folders.sites / "php") as php, ExitStack() as stack:
        await accepting(php)
        site = nginx.site(1001, serves=Php(root=str(root), socket=str(php)), certificate=nginx.certificate("one"))
        (root / "index.php").write_text(
            "<?php echo $_SERVER['PATH_INFO'] ?? '', strlen(file_get_contents('php://input'));"
        )
        await nginx.generations.start([site])
        for number in range(LARGE_BODIES):
            head = "Content-Length: 00536870911" if number % 2 else "Transfer-Encoding: chunked"
            stack.enter_context(begun(nginx, "127.0.0.1", head))
        # nginx has read each of them when it answers one that came after them.
        assert (await nginx.visit(HOST, "/index.php")).status_code == 200
        refused = answered(stack.enter_context(begun(nginx, "127.0.0.1", "Content-Length: 20000000")), 30)
        other = answered(stack.enter_context(begun(nginx, "127.0.0.2", "Content-Length: 20000000")), 0.2)
        assert refused.startswith(b"HTTP/1.1 429 ")
        assert other == b""
        url = f"https://127.0.0.1:{nginx.ports.https}"
        told: dict[str, Any] = {"headers": {"Host": HOST}, "extensions": {"sni_hostname": HOST}}

        async def chunks(count: int) -> AsyncIterator[bytes]:
            for _ in range(count):
                yield b"x" * 16384

        # What asks, and sends nothing, is no upload, whatever HTTP/2 leaves unsaid.
        async with client("127.0.0.1", http2=True) as http:
            for method in ("GET", "OPTIONS", "DELETE", "PROPFIND", "MKCOL"):
                answer = await http.request(method, f"{url}/index.php", **told)
                assert (answer.http_version, method, answer.status_code) == ("HTTP/2", method, 200)
            assert (await http.post(f"{url}/index.php", content=chunks(1), **told)).status_code == 429
        async with client("127.0.0.3", http2=True) as http:
            assert (await http.get(f"{url}/pretty/link", **told)).text == "0"
            assert (await http.get(f"{url}/index.php/info", **told)).text == "/info0"
            assert (await http.request("GET", f"{url}/index.php", content=chunks(1), **told)).text == "16384"
            assert (await http.post(f"{url}/index.php", content=b"x" * 100_000, **told)).text == "100000"
            assert (await http.post(f"{url}/index.php", content=chunks(10), **told)).text == "163840"
            # A read whose body has no length that somebody said would be one more way to fill the disk.
            for method in ("GET", "OPTIONS", "DELETE", "PROPFIND", "MKCOL"):
                assert (await http.request(method, f"{url}/index.php", content=chunks(40), **told)).status_code == 413


async def drained(port: int, path: str, *, bytes_at_most: int = 1 << 50) -> int:
    """What one visitor reads of an answer that is packed, as fast as it comes."""
    received = 0
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        asked = f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n"
        await stream.send_all(asked.encode())
        async for chunk in stream:
            received += len(chunk)
            if received >= bytes_at_most:
                break
    return received


@pytest.mark.parametrize("path", ["/large.txt", "/large.php"])
async def test_others_are_served_while_large_answers_are_packed(nginx: Sites, path: str) -> None:
    """A file of zeros takes no room on the disk, and of each gigabyte a megabyte is sent: no visitor ever waits for it,
    and nor does nginx, which would pack all of it before it looks at anybody else."""
    root = nginx.folders.sites / "s1001" / "public"
    with php_fpm(nginx.folders.sites / "php") as php:
        await accepting(php)
        site = nginx.site(1001, serves=Php(root=str(root), socket=str(php)))
        with (root / "large.txt").open("wb") as file:
            file.truncate(1 << 40)
        (root / "large.php").write_text(
            "<?php header('Content-Type: text/plain'); $block = str_repeat(chr(0), 1 << 20); while (true) echo $block;"
        )
        await nginx.generations.start([site, nginx.site(1002)])
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(drained, nginx.ports.http, path)
                # Each worker has begun with one of them at least.
                assert await drained(nginx.ports.http, path, bytes_at_most=100_000) >= 100_000
                for _ in range(40):
                    assert (await nginx.visit("site1002.example")).text == "page of 1002"
                nursery.cancel_scope.cancel()


BIG = """<?php
for ($i = 0; $i < 64; $i++) { echo str_repeat('x', 1 << 20); flush(); }
touch(__DIR__ . '/done');
"""


def kept_on_disk(nginx: Sites) -> int:
    """Bytes of answers in files of nginx's workers, which have no name."""
    found = 0
    for pid in children(int((nginx.folders.run / "nginx.pid").read_text())):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                if "/temporary/" in os.readlink(descriptor):
                    found += descriptor.stat().st_size
    return found


async def test_an_answer_that_a_visitor_does_not_read_takes_little_of_the_disk(nginx: Sites) -> None:
    root = nginx.folders.sites / "s1001" / "public"
    bound = visitors.ANSWER_BYTES - 65_536  # It ends with a piece that was whole.
    with php_fpm(nginx.folders.sites / "php") as php, ExitStack() as stack:
        await accepting(php)
        site = nginx.site(1001, serves=Php(root=str(root), socket=str(php)))
        (root / "big.php").write_text(BIG)
        (root / "small.php").write_text("<?php echo 'small';")
        root.chmod(0o777)
        await nginx.generations.start([site])
        visitor = stack.enter_context(socket.socket())
        visitor.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        visitor.settimeout(30)
        visitor.connect(("127.0.0.1", nginx.ports.http))
        visitor.sendall(f"GET /big.php HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode())
        with trio.fail_after(30):
            while not (root / "done").exists() and kept_on_disk(nginx) < bound:
                await trio.sleep(0.01)  # nginx takes what PHP gives.
        assert (await nginx.visit(HOST, "/small.php")).text == "small"
        kept = kept_on_disk(nginx)
        waits = not (root / "done").exists()
        received = 0
        while block := visitor.recv(1 << 20):
            received += len(block)

    assert waits, "the program goes on once somebody has read what it said"
    assert bound <= kept < 2 * visitors.ANSWER_BYTES
    assert received > 64 << 20, "and gets all of it"


def opened(address: str, port: int, count: int) -> int:
    """How many of `count` connections that one address opens at once are there before the kernel tries again."""
    with ExitStack() as stack:
        waiting = []
        for _ in range(count):
            connection = stack.enter_context(socket.socket())
            connection.setblocking(False)
            # Ended at once: what waits for its end would keep its port from the tests after this one.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.bind((address, 0))
            assert connection.connect_ex(("127.0.0.1", port)) in (0, errno.EINPROGRESS)
            connection_poll = select.poll()
            connection_poll.register(connection, select.POLLOUT)
            waiting.append(connection_poll)
        return sum(bool(each.poll(0)) for each in waiting)


async def test_one_address_opens_so_many_connections_and_another_is_served(nginx: Sites) -> None:
    await nginx.generations.start([nginx.site(1001)])
    bound = NftBound([nginx.ports.http, nginx.ports.https])
    await bound.hold()
    await bound.hold()
    # All visitors of a test come by the loopback interface.
    rules = ruleset([nginx.ports.http], loopback="none")
    await trio.run_process(["/usr/sbin/nft", "-f", "-"], stdin=rules.encode())
    try:
        found = await trio.to_thread.run_sync(opened, "127.0.0.2", nginx.ports.http, AT_ONCE + 600)
        page = await nginx.visit(HOST)
        await bound.hold()
    finally:
        await trio.run_process(["/usr/sbin/nft", "delete", "table", "inet", TABLE])

    assert AT_ONCE - 10 <= found < AT_ONCE + 600
    assert page.text == "page of 1001"
    # Somebody removed it: it is made again.
    await bound.hold()
    await trio.run_process(["/usr/sbin/nft", "delete", "table", "inet", TABLE])


_REACHES = """
import os, socket, subprocess, sys
subprocess.run(("nft", "-f", "-"), input=sys.argv[1].encode(), check=True)
subprocess.run(("ip", "link", "set", "lo", "up"), check=True)
held = []
for place in sys.argv[3:]:
    six = ":" in place
    subprocess.run(("ip", "addr", "add", f"{place}/{128 if six else 32}", "dev", "lo", *["nodad"] * six), check=True)
    family = socket.AF_INET6 if six else socket.AF_INET
    held += [socket.create_server((place, port), family=family) for port in (53, 80)]
for account in (1000, int(sys.argv[2])):
    for one in held:
        if os.fork() == 0:
            os.setresuid(account, account, account)
            asking = socket.socket(one.family)
            asking.settimeout(0.2)
            reached = asking.connect_ex(one.getsockname()[:2]) == 0
            if reached != (account == 1000 or one.getsockname()[1] == 53):
                print(account, *one.getsockname()[:2], reached, flush=True)
            os._exit(0)
        os.wait()
"""


async def test_programs_of_sites_reach_no_metadata_of_a_cloud_but_its_resolver() -> None:
    account = SiteAccount(1001).uid

    places = ("169.254.169.254", *METADATA)

    ran = await trio.run_process(
        ["unshare", "-n", "/usr/bin/python3", "-c", _REACHES, ruleset([443]), str(account), *places],
        capture_stdout=True,
    )

    # Each that was reached and should not be, or the other way round.
    assert ran.stdout.decode().splitlines() == []
