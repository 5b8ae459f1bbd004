"""What a program of a site sees of its server, and what it may do there: with real accounts' numbers and processes."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

import pytest
import trio

from svc_webhost import mail
from svc_webhost.accounts import SiteAccount
from svc_webhost.confined import enter_site
from svc_webhost.folders import HostFolders
from svc_webhost.launcher import Limits, ServiceName
from svc_webhost.programs import Program, run_program
from svc_webhost.site_runtime import (
    SiteCommands,
    prepare_shared_sockets,
    programs_of,
    site_command,
    site_environment,
    site_service,
    site_socket,
    stop_programs,
)
from tests.support.launchers import Place, keeper_place, until

pytestmark = [pytest.mark.system, pytest.mark.isolated]

ADA, BOB = SiteAccount(9_464_001), SiteAccount(9_464_002)
"""Far above what other servers in the same machine have."""


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with keeper_place() as place:
        folders = HostFolders(place.folder)
        place.folder.chmod(0o711)
        await trio.to_thread.run_sync(prepare_shared_sockets, folders)
        for account in (ADA, BOB):
            for folder in (folders.sites / account.name, folders.sites / account.name / "tmp"):
                folder.mkdir(parents=True)
                os.chown(folder, account.uid, account.uid)
        (folders.sites / BOB.name / "secret").write_text("of Bob")
        (folders.data / "secret.key").write_text("of the panel")
        yield place


async def said(place: Place, account: SiteAccount, script: str, *, processes: int | None = None) -> list[str]:
    """What a shell says that runs as the account."""
    folders = HostFolders(place.folder)
    command = site_command(folders, account, ("/bin/sh", "-c", script), processes=processes)
    lines: list[str] = []

    async def take(some: list[str]) -> None:
        lines.extend(some)

    await run_program(Program(command, environment=site_environment(folders, account)), take)
    return lines


async def test_of_the_data_folder_nothing_is_seen_but_the_own_home(place: Place) -> None:
    data = place.folder

    found = await said(
        place, ADA, f"find {data} ! -name '*.pyc' | sort; cat {data}/sites/s9464002/secret {data}/secret.key"
    )

    assert found[:20] == [
        f"{data}",
        f"{data}/run",
        f"{data}/run/shared",
        f"{data}/run/shared/mail",
        f"{data}/run/shared/mail/sbin",
        f"{data}/run/shared/mail/sbin/sendmail",
        f"{data}/run/shared/mail/svc_webhost",
        f"{data}/run/shared/mail/svc_webhost/mail",
        f"{data}/run/shared/mail/svc_webhost/mail/__pycache__",
        f"{data}/run/shared/mail/svc_webhost/mail/dkim.py",
        f"{data}/run/shared/mail/svc_webhost/mail/message.py",
        f"{data}/run/shared/mail/svc_webhost/mail/sendmail.py",
        f"{data}/run/shared/settings",
        f"{data}/run/shared/settings/databases.ini",
        f"{data}/run/shared/settings/mail.ini",
        f"{data}/run/shared/settings/my.cnf",
        f"{data}/sites",
        f"{data}/sites/s9464001",
        f"{data}/sites/s9464001/tmp",
        f"cat: {data}/sites/s9464002/secret: No such file or directory",
    ]
    assert found[20:] == [f"cat: {data}/secret.key: No such file or directory"]


async def test_processes_and_control_groups_of_others_are_invisible(place: Place) -> None:
    folders = HostFolders(place.folder)
    other = await place.launcher.ensure(site_service(folders, BOB, "app", ("/bin/sleep", "1000")))

    listed = await said(place, ADA, "ls -d /proc/[0-9]* | wc -l; ls /sys/fs/cgroup | wc -l")
    signalled = await said(place, ADA, f"cat /proc/{other.pid}/cmdline; kill -KILL {other.pid}")

    # The shell and the two programs of its pipe at the most.
    assert int(listed[0]) <= 3
    assert listed[1] == "0"
    assert "No such file" in signalled[0]
    assert "not permitted" in signalled[1]
    assert (await place.launcher.status(ServiceName("site-9464002-app"))).running


async def test_temporary_files_are_its_own_and_the_rest_is_read_only(place: Place) -> None:
    mark = "/tmp/of-a-site"

    mine = await said(place, ADA, f"touch {mark} /var/tmp/x /dev/shm/x ~/x && cd && ls; touch /etc/x; id -u; pwd")
    theirs = await said(place, BOB, f"ls {mark} /var/tmp/x /dev/shm/x")

    assert mine[:2] == ["tmp", "x"]
    assert "Read-only file system" in mine[2]
    assert mine[3:] == [str(ADA.uid), str(place.folder / "sites" / "s9464001")]
    assert [line.rpartition(": ")[2] for line in theirs] == ["No such file or directory"] * 3
    assert not Path(mark).exists()


async def test_programs_find_the_database_servers_by_themselves(place: Place) -> None:
    folders = HostFolders(place.folder)
    php = """echo ini_get("mysqli.default_socket"), "\\n", ini_get("pdo_mysql.default_socket"), "\\n";"""

    found = await said(
        place, ADA, f"php -r '{php}'; mariadb --print-defaults | tail -n 1; psql -U ada -c 'SELECT 1' 2>&1"
    )

    assert found[:2] == [str(folders.mariadb_socket)] * 2
    assert found[2].split()[-1] == f"--socket={folders.mariadb_socket}"
    assert f'"{folders.postgres_sockets}/.s.PGSQL.5432"' in found[3]


async def test_sendmail_is_the_panels_whether_the_server_has_one_or_not(place: Place, tmp_path: Path) -> None:
    """A view of the server without a mail server, and one with a sendmail that would never end."""
    asked = "/usr/sbin/sendmail -bp; echo $?; /usr/lib/sendmail -bp; test -x /usr/sbin/nologin && echo others"
    command = site_command(HostFolders(place.folder), ADA, ("/bin/sh", "-c", asked))

    answers = []
    for words in (command, with_sendmail(tmp_path, "exec sleep 1000", command)):
        with trio.fail_after(60):
            done = await trio.run_process(words, capture_stdout=True, capture_stderr=True, check=False)
        answers.append((done.stdout.decode().split(), done.stderr.decode()))

    for said_by, complaint in answers:
        assert said_by == ["64", "others"]
        assert "shown in the panel" in complaint


async def test_without_a_relay_it_is_the_servers_own_if_that_speaks_smtp(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = HostFolders(place.folder)
    command = site_command(folders, ADA, ("/bin/sh", "-c", "/usr/sbin/sendmail -t"))
    installed = with_sendmail(tmp_path, "echo own $1", command)
    monkeypatch.setattr(mail, "SENDMAIL_OF_SERVER", tmp_path / "sendmail")

    await trio.to_thread.run_sync(partial(prepare_shared_sockets, folders, relay=False))
    done = await trio.run_process(installed, capture_stdout=True, capture_stderr=True, check=False)

    assert (done.stdout, done.stderr) == (b"own -t\n", b"")


def with_sendmail(folder: Path, script: str, command: Sequence[str]) -> list[str]:
    """The command on a server that has this script as its sendmail, and of which only its process knows."""
    sendmail, layers = folder / "sendmail", folder / "layers"
    layers.mkdir()
    sendmail.write_text(f"#!/bin/sh\n{script}\n")
    sendmail.chmod(0o755)
    install = (
        "mount -t tmpfs none $1 && mkdir $1/up $1/w && cp $0 $1/up/sendmail && mount -t overlay "
        '-o lowerdir=/usr/sbin,upperdir=$1/up,workdir=$1/w none /usr/sbin && shift && exec "$@"'
    )
    return ["unshare", "-m", "/bin/bash", "-c", install, str(sendmail), str(layers), *command]


async def test_a_program_that_runs_elsewhere_is_shown_to_it(place: Place) -> None:
    """As uv is, while another site builds. The program that is shown runs this test."""
    running = Path(sys.executable).resolve()
    command = site_command(HostFolders(place.folder), ADA, (str(running), "-c", "print('ran')"), shown=(running,))

    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)

    assert (done.stdout, done.stderr) == (b"ran\n", b"")


async def test_where_memory_runs_out_a_build_ends_before_what_serves_the_site(place: Place) -> None:
    """The kernel takes the largest of a group by its score, and a program may lower its own no further than it was."""
    script = "cat /proc/self/oom_score_adj; (echo 0 > /proc/self/oom_score_adj) 2>/dev/null || echo held"
    build = await SiteCommands(HostFolders(place.folder), place.launcher).command(ADA, ("/bin/sh", "-c", script), None)
    of_build: list[str] = []

    async def take(some: list[str]) -> None:
        of_build.extend(some)

    await run_program(Program(build), take)

    assert of_build == ["900", "held"]
    assert await said(place, ADA, script) == ["500", "held"]


async def test_a_definition_of_the_earlier_release_runs_after_an_update(place: Place) -> None:
    folders = HostFolders(place.folder)
    home = str(folders.sites / ADA.name)
    order = {
        "uid": ADA.uid,
        "gid": ADA.uid,
        "home": home,
        "folder": home,
        "data": str(folders.data),
        "shown": [str(folders.shared_sockets)],
        "processes": None,
        "log": None,
    }

    ran = await trio.run_process(
        [sys.executable, "-I", "-S", enter_site.__file__, json.dumps(order), "/usr/bin/id", "-u"],
        capture_stdout=True,
        capture_stderr=True,
        check=False,
    )

    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"{ADA.uid}\n".encode(), b"")


async def test_no_program_gains_rights(place: Place) -> None:
    setuid = place.folder / "sites" / "s9464001" / "id"
    setuid.write_bytes(Path("/usr/bin/id").read_bytes())
    setuid.chmod(stat.S_ISUID | 0o755)

    found = await said(place, ADA, f"{setuid} -u; grep -E 'NoNewPrivs|CapEff|CapPrm' /proc/self/status; id -G")

    assert found[0] == str(ADA.uid)
    assert [line.split()[1] for line in found[1:4]] == ["0" * 16, "0" * 16, "1"]
    assert found[4] == str(ADA.uid)


_REFUSED = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def tried(call, *arguments):
    print(call, "0" if getattr(libc, call)(*arguments) >= 0 else os.strerror(ctypes.get_errno()))
def opened(*wanted):
    try:
        socket.socket(*wanted).close()
        print("socket", "0")
    except OSError as error:
        print("socket", os.strerror(error.errno))
tried("unshare", 0x10000000)
tried("unshare", 0x40000000)
tried("syscall", 425, 8, None)
tried("syscall", 250 if os.uname().machine == "x86_64" else 219, 0, 0, 0)
tried("mount", b"none", b"/tmp", b"tmpfs", 0, None)
if os.fork() == 0:
    os._exit(0)
os.wait()
opened(socket.AF_NETLINK, socket.SOCK_RAW, 12)
opened(socket.AF_PACKET, socket.SOCK_RAW, 0)
opened(socket.AF_NETLINK, socket.SOCK_RAW, 0)
print(socket.getaddrinfo("127.0.0.1", 80)[0][4][0])
"""


async def test_the_kernel_refuses_what_no_web_application_needs(place: Place) -> None:
    found = await said(place, ADA, f"unshare -U id; exec python3 -uc '{_REFUSED}'")

    assert "Operation not permitted" in found[0]
    assert [line.partition(" ")[2] for line in found[1:6]] == ["Operation not permitted"] * 5
    assert found[6:] == [
        "socket Protocol not supported",
        "socket Address family not supported by protocol",
        "socket 0",
        "127.0.0.1",
    ]


async def test_a_fork_bomb_of_a_site_is_held_by_its_limit(place: Place) -> None:
    folders = HostFolders(place.folder)
    home = folders.sites / ADA.name
    # The shell that is refused a process ends; what it began and its parent stay.
    bomb = "(n=0; while [ $n -lt 300 ]; do sleep 1000 & n=$((n+1)); done) 2>$HOME/refused; exec sleep 1000"
    service = site_service(folders, ADA, "bomb", ("/bin/sh", "-c", bomb), limits=Limits(processes=20))

    await place.launcher.ensure(service)
    await until(lambda: _says(home / "refused"))
    count = sum(1 for process in Path("/proc").iterdir() if process.name.isdigit() and _is_of(process, ADA.uid))

    # Another site begins what it likes meanwhile.
    assert await said(place, BOB, "echo alive", processes=20) == ["alive"]
    assert 10 < count <= 20


async def _says(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _is_of(process: Path, uid: int) -> bool:
    try:
        return process.stat().st_uid == uid
    except FileNotFoundError:
        return False


async def test_its_socket_is_for_the_web_server_alone(place: Place) -> None:
    folders = HostFolders(place.folder)
    path = place.folder / "sockets" / "php.sock"
    service = site_service(folders, ADA, "php", ("/bin/sleep", "1000"), sockets=(site_socket(path, "HELD"),))

    await place.launcher.ensure(service)
    bound = path.stat()

    assert (bound.st_uid, bound.st_gid, stat.S_IMODE(bound.st_mode)) == (0, 33, 0o660)
    assert (await said(place, BOB, f"ls {path}"))[0].endswith("No such file or directory")


async def test_the_programs_of_a_site_are_found_by_its_name_and_stopped(place: Place) -> None:
    folders = HostFolders(place.folder)
    for account, name in ((ADA, "php-1"), (ADA, "php-2"), (ADA, "app"), (BOB, "php-1")):
        await place.launcher.ensure(site_service(folders, account, name, ("/bin/sleep", "1000")))

    await stop_programs(place.launcher, ADA, "php-", keep=[site_service(folders, ADA, "php-2", ("/x",)).name])
    left = await programs_of(place.launcher, ADA)
    await stop_programs(place.launcher, ADA)

    assert left == {"site-9464001-php-2", "site-9464001-app"}
    assert await place.launcher.names() == {"site-9464002-php-1"}


async def test_a_home_that_is_a_link_is_not_entered(place: Place) -> None:
    home = place.folder / "sites" / "s9464001"
    (home / "tmp").rmdir()
    home.rmdir()
    home.symlink_to(place.folder / "sites" / "s9464002")

    found = await said(place, ADA, "cat secret")

    assert "of Bob" not in found
    assert len(found) == 1
    assert found[0].startswith("/bin/sh cannot be run for the site")
