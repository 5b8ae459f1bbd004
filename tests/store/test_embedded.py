"""PostgreSQL as a part of the service: one server a folder, always the same data, nobody else's business."""

from __future__ import annotations

import os
import pwd
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import trio

from svc_actors.store import Database, DatabaseInUseError, DatabaseStartError, database_urls, embedded
from svc_actors.store.reach import server_account
from tests.support.postgres_server import PATIENCE, answered, kill_server, postmaster, server_folder, until

_SERVE = """
import pathlib, sys, trio
from svc_actors.store import Database, embedded

async def serve():
    async with embedded(pathlib.Path(sys.argv[1])) as url, Database.open(url) as database:
        await database.execute("CREATE TABLE IF NOT EXISTS mark (words text)")
        await database.execute("INSERT INTO mark VALUES ('kept')")
        try:
            # Inside the block: an interrupt may follow the word at once.
            print("serving", flush=True)
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                print(await database.fetchval("SELECT 'still ' || words FROM mark"), flush=True)

trio.run(serve)
"""


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def servers_of(folder: Path) -> list[int]:
    """The postmasters that work on a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if arguments[0].endswith(b"/postgres") and str(folder / "cluster").encode() in arguments:
                found.append(int(entry.name))
    return found


async def test_a_second_start_finds_the_same_data_and_leaves_no_server_behind() -> None:
    with server_folder() as folder:
        async with embedded(folder) as url, Database.open(url) as database:
            await database.execute("CREATE TABLE mark (words text)")
            await database.execute("INSERT INTO mark VALUES ('kept')")
        assert servers_of(folder) == []
        async with embedded(folder) as url, Database.open(url) as database:
            assert await database.fetchval("SELECT words FROM mark") == "kept"


async def test_a_killed_server_comes_back_with_its_data_at_the_same_address() -> None:
    with server_folder() as folder:
        async with embedded(folder) as url, Database.open(url) as database:
            await database.execute("CREATE TABLE mark (words text)")
            for words in ("one", "two"):
                await database.execute("INSERT INTO mark VALUES ($1)", words)
                killed = kill_server(folder)

                async def replaced(killed: int = killed) -> bool:
                    return postmaster(folder) not in (killed, 0) and servers_of(folder) == [postmaster(folder)]

                await until(replaced)
                found = await answered(lambda: database.fetch("SELECT words FROM mark"))
                assert words in {row["words"] for row in found}


async def test_a_folder_in_use_is_refused_and_its_server_left_alone() -> None:
    with server_folder() as folder:
        async with embedded(folder):
            before = postmaster(folder)
            with pytest.raises(DatabaseInUseError, match="Another running service"):
                async with embedded(folder):
                    pytest.fail("two services must not share a folder")
            assert servers_of(folder) == [before]


@asynccontextmanager
async def running_service(folder: Path) -> AsyncIterator[trio.Process]:
    """Another process that runs a database in a folder, at its own terminal so to speak."""
    service = await trio.lowlevel.open_process(
        [sys.executable, "-c", _SERVE, str(folder)], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert await line(service) == "serving"
        yield service
    finally:
        service.kill()
        await service.wait()


async def line(service: trio.Process) -> str:
    assert service.stdout is not None
    read = b""
    with trio.fail_after(PATIENCE):
        while not read.endswith(b"\n"):
            piece = await service.stdout.receive_some(1)
            assert piece, "the service ended"
            read += piece
    return read.decode().strip()


async def test_the_server_of_a_killed_service_is_replaced_never_doubled() -> None:
    with server_folder() as folder:
        async with running_service(folder) as service:
            left_over = postmaster(folder)
            service.kill()
            await service.wait()
        assert is_running(left_over)
        async with embedded(folder) as url, Database.open(url) as database:
            assert not is_running(left_over)
            assert servers_of(folder) == [postmaster(folder)]
            assert await database.fetchval("SELECT words FROM mark") == "kept"


async def test_an_interrupt_at_the_terminal_reaches_the_server_only_through_the_service() -> None:
    with server_folder() as folder:
        async with running_service(folder) as service:
            server = postmaster(folder)
            os.killpg(service.pid, signal.SIGINT)
            assert await line(service) == "still kept"
            with trio.fail_after(PATIENCE):
                await service.wait()
        assert not is_running(server)
        assert not (folder / "cluster" / "postmaster.pid").exists()


async def test_the_pid_file_of_a_dead_server_whose_pid_another_process_has_now_is_no_obstacle() -> None:
    account = server_account()
    bystander = await trio.lowlevel.open_process(["sleep", "600"], cwd="/", user=account.uid if account else None)
    try:
        with server_folder() as folder:
            async with embedded(folder):
                stale = (folder / "cluster" / "postmaster.pid").read_text().splitlines()
            stale[0] = str(bystander.pid)
            (folder / "cluster" / "postmaster.pid").write_text("\n".join(stale) + "\n")
            async with embedded(folder) as url, Database.open(url) as database:
                assert await database.fetchval("SELECT 1") == 1
            assert bystander.poll() is None
    finally:
        bystander.kill()
        await bystander.wait()


async def test_a_path_too_long_for_a_socket_is_no_obstacle() -> None:
    with server_folder() as folder:
        async with embedded(folder / ("long-" * 30)) as url, Database.open(url) as database:
            assert await database.fetchval("SELECT 1") == 1
            elsewhere = Path(parse_qs(urlsplit(url).query)["host"][0])
            assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o700
        assert not elsewhere.exists()


async def test_a_folder_whose_parents_are_closed_to_others_is_no_obstacle() -> None:
    with server_folder() as folder:
        closed = folder.parent / "closed"
        closed.mkdir(mode=0o700)
        async with embedded(closed / "postgresql") as url, Database.open(url) as database:
            assert await database.fetchval("SELECT 1") == 1
        assert closed.stat().st_mode & stat.S_IRWXO == 0


async def test_nobody_else_can_reach_the_socket_or_read_the_data() -> None:
    with server_folder() as folder:
        async with embedded(folder) as url, Database.open(url) as database:
            socket_folder = Path(parse_qs(urlsplit(url).query)["host"][0])
            for closed in (folder / "cluster", socket_folder):
                assert stat.S_IMODE(closed.stat().st_mode) == 0o700
            assert stat.S_IMODE(folder.stat().st_mode) & (stat.S_IRWXO & ~stat.S_IXOTH) == 0
            assert folder.stat().st_uid == os.geteuid()
            assert await database.fetchval("SHOW listen_addresses") == ""
            assert await database.fetchval("SELECT NOT rolsuper FROM pg_roles WHERE rolname = current_user")
            if os.geteuid() == 0:
                assert await reach_as(pwd.getpwnam("nobody"), socket_folder / ".s.PGSQL.5432") == "PermissionError"


async def reach_as(user: pwd.struct_passwd, path: Path) -> str:
    """What a user who connects to a unix socket is told."""
    program = (
        "import socket, sys\n"
        "try:\n socket.socket(socket.AF_UNIX).connect(sys.argv[1])\n"
        "except OSError as error:\n print(type(error).__name__, end='')"
    )
    done = await trio.run_process(
        ["/usr/bin/python3", "-c", program, str(path)],
        capture_stdout=True,
        cwd="/",
        user=user.pw_uid,
        group=user.pw_gid,
        extra_groups=[],
    )
    return done.stdout.decode()


@pytest.mark.parametrize("name", ["server.log", "lock"])
@pytest.mark.parametrize("link", [os.symlink, os.link])
async def test_a_link_in_place_of_a_file_is_refused_and_what_it_leads_to_left_alone(
    name: str, link: Callable[[Path, Path], None]
) -> None:
    with server_folder() as folder:
        async with embedded(folder):
            pass
        precious = folder.parent / "precious"
        precious.write_text("precious")
        (folder / name).unlink()
        link(precious, folder / name)

        with pytest.raises(PermissionError, match="look who made it"):
            async with embedded(folder):
                pytest.fail("the service must not work through a link")

        assert precious.read_text() == "precious"


async def test_a_folder_of_the_earlier_layout_is_taken_back_from_the_servers_account() -> None:
    account = server_account()
    with server_folder() as folder:
        async with embedded(folder) as url, Database.open(url) as database:
            await database.execute("CREATE TABLE mark (words text)")
        if account is not None:
            os.chown(folder, account.uid, account.gid)
        folder.chmod(0o700)
        (folder / "cluster" / "pg_ident.conf").write_text("svc root svc\n")

        async with embedded(folder) as url, Database.open(url) as database:
            assert await database.fetchval("SELECT count(*) FROM mark") == 0
        assert folder.stat().st_uid == os.geteuid()


async def test_what_the_services_role_owned_before_is_handed_to_the_owner() -> None:
    with server_folder() as folder:
        async with embedded(folder) as url, Database.open(url) as owner:
            await owner.execute("CREATE TABLE mark (words text)")
            administration = url.replace("//svc_owner@", "//postgres@")
            async with Database.open(administration) as superuser:
                await superuser.execute("ALTER DATABASE svc OWNER TO svc; ALTER TABLE mark OWNER TO svc")
        async with embedded(folder) as url, Database.open(url) as owner:
            assert await owner.fetchval("SELECT tableowner FROM pg_tables WHERE tablename = 'mark'") == "svc_owner"
            assert await owner.fetchval("SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = 'svc'") == (
                "svc_owner"
            )


async def test_a_cluster_of_another_major_version_is_refused_untouched() -> None:
    with server_folder() as folder:
        async with embedded(folder):
            pass
        version = folder / "cluster" / "PG_VERSION"
        version.write_text("16\n")
        with pytest.raises(DatabaseStartError, match="made by PostgreSQL 16"):
            async with embedded(folder):
                pytest.fail("another version's data must not be opened")
        assert version.read_text() == "16\n"


async def test_a_server_that_does_not_start_says_why() -> None:
    with server_folder() as folder:
        with pytest.raises(DatabaseStartError, match="no_such_setting"):
            async with embedded(folder, settings={"no_such_setting": "1"}):
                pytest.fail("the server cannot start with this")
        async with embedded(folder) as url, Database.open(url) as database:
            assert await database.fetchval("SELECT 1") == 1


async def test_the_service_stops_its_server_when_it_fails_itself() -> None:
    with server_folder() as folder:
        with pytest.raises(ZeroDivisionError):
            async with embedded(folder):
                raise ZeroDivisionError
        assert servers_of(folder) == []


async def test_a_named_server_is_used_instead_of_an_embedded_one(tmp_path: Path) -> None:
    environ = {"SVC_DATABASE_URL": "postgresql://elsewhere/svc"}
    async with database_urls(tmp_path, environ) as urls:
        assert urls.service == urls.owner == "postgresql://elsewhere/svc"
    async with database_urls(tmp_path, {**environ, "SVC_DATABASE_OWNER_URL": "postgresql://owner@elsewhere"}) as urls:
        assert (urls.service, urls.owner) == ("postgresql://elsewhere/svc", "postgresql://owner@elsewhere")
    assert list(tmp_path.iterdir()) == []
