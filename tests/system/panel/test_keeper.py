"""The keeper's own promises: what becomes of everything when it is killed, whom it obeys, what it weighs."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from svc_actors.panel.health import busiest
from svc_actors.store import Database
from svc_webhost.folders import HostFolders
from svc_webhost.keeper.__main__ import ANOTHER
from svc_webhost.launcher import GroupName, LauncherError, Limits, Service, ServiceName
from svc_webhost.launcher_keeper import PROGRAM
from svc_webhost.vitals import SystemVitals
from tests.support.launchers import PYTHON, Place, keeper_place, until, written
from tests.support.panel import open_panel, recorded_host

pytestmark = [pytest.mark.system, pytest.mark.isolated]

WEB = ServiceName("web")


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with keeper_place() as place:
        yield place


async def kill_the_keeper(place: Place) -> int:
    """Returns the process id that it had."""
    killed = await place.keeper.keeper_pid()
    os.kill(killed, signal.SIGKILL)

    async def gone() -> bool:
        return not place.alive(killed)

    await until(gone)
    return killed


async def test_a_killed_keeper_leaves_everything_running_and_its_successor_takes_it_over(place: Place) -> None:
    service = place.service("web", "serve", "hello", listens=True)
    before = await place.launcher.ensure(service)

    killed = await kill_the_keeper(place)
    meanwhile = await place.greeting("web")
    again = await place.launcher.ensure(service)

    assert meanwhile == f"hello {before.pid}"
    assert (again.pid, again.since, again.restarts) == (before.pid, before.since, 0)
    assert await place.keeper.keeper_pid() != killed


async def test_a_successor_starts_again_what_ends_on_the_same_socket(place: Place) -> None:
    first = await place.launcher.ensure(place.service("web", "serve", "hello", listens=True))
    assert first.pid is not None
    inode = place.socket("web").stat().st_ino
    await kill_the_keeper(place)
    await place.launcher.names()

    place.kill(first.pid)
    # Refused, it would raise: the socket that the successor took back is listening while nothing runs.
    answered = await place.greeting("web")
    second = await place.launcher.ensure(place.service("web", "serve", "changed", listens=True))

    assert answered.startswith("hello ")
    assert await place.greeting("web") == f"changed {second.pid}"
    assert place.socket("web").stat().st_ino == inode


async def test_what_ended_while_there_was_no_keeper_is_started_and_what_it_left_is_ended(place: Place) -> None:
    left = place.folder / "writable" / "left"
    before = await place.launcher.ensure(place.service("forks", "leave", str(left)))
    stray = int(await written(left))
    assert before.pid is not None

    await kill_the_keeper(place)
    place.kill(before.pid)
    left.unlink()
    await place.launcher.names()

    async def back() -> bool:
        return (await place.launcher.status(ServiceName("forks"))).running

    await until(back)
    assert not place.alive(stray)
    assert (await place.launcher.status(ServiceName("forks"))).pid != before.pid


async def test_no_connection_is_refused_while_keeper_after_keeper_is_killed(place: Place) -> None:
    await place.launcher.ensure(place.service("web", "serve", "hello", listens=True))
    heard = set()
    finished = trio.Event()

    async def connect_all_the_time() -> None:
        while not finished.is_set():
            heard.add(await place.greeting("web"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(connect_all_the_time)
        for _ in range(5):
            await kill_the_keeper(place)
            await place.launcher.names()
        finished.set()

    assert len(heard) == 1


async def test_what_rested_under_a_killed_keeper_is_started_by_its_successor_on_demand(place: Place) -> None:
    service = replace(place.service("web", "serve", "hello", listens=True), on_demand=True)
    await place.launcher.ensure(service)

    await kill_the_keeper(place)
    names = await place.launcher.names()
    resting = await place.launcher.status(service.name)
    answered = await place.greeting("web")

    assert names == {"web"}
    assert not resting.running
    assert answered == f"hello {(await place.launcher.processes())[service.name]}"


async def test_a_watched_keeper_is_followed_by_the_next_without_a_request(place: Place) -> None:
    service = place.service("web", "serve", "hello", listens=True)
    first = await place.launcher.ensure(service)
    assert first.pid is not None

    async with trio.open_nursery() as nursery:
        nursery.start_soon(place.keeper.watch)
        await kill_the_keeper(place)
        await until(lambda: _listens(place))
        place.kill(first.pid)
        answered = await place.greeting("web")
        nursery.cancel_scope.cancel()

    assert answered != f"hello {first.pid}"


async def test_a_core_follows_its_keeper_with_the_next(place: Place, panel_database: Database, tmp_path: Path) -> None:
    async with open_panel(panel_database, tmp_path, replace(recorded_host(), launcher=place.launcher), loops=None):
        await until(lambda: _listens(place))
        killed = await kill_the_keeper(place)
        await until(lambda: _listens(place))

    assert await place.keeper.keeper_pid() != killed


async def _listens(place: Place) -> bool:
    """Asked without the launcher, which would start a keeper."""
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(str(HostFolders(place.folder).keeper_socket)) == 0


async def test_what_fails_at_its_start_is_tried_again_ever_more_slowly(place: Place) -> None:
    service = place.service("fails", "end", "3")
    began = trio.current_time()

    await place.launcher.ensure(service)

    async def tried_four_times() -> bool:
        return (await place.launcher.status(service.name)).restarts >= 4

    await until(tried_four_times)
    assert trio.current_time() - began >= 0.1 + 0.2 + 0.4 + 0.8
    assert (await place.launcher.status(service.name)).last_exit == "exit status 3"
    assert "Z fails: exit status 3; it is started again" in (place.folder / "logs" / "keeper.log").read_text()


async def test_killing_the_core_with_all_its_group_changes_nothing(place: Place) -> None:
    core = f"""
import trio
from pathlib import Path
from svc_webhost.folders import HostFolders
from svc_webhost.launcher import Service, ServiceName
from svc_webhost.launcher_keeper import KeeperLauncher

async def main():
    launcher = KeeperLauncher(HostFolders(Path({str(place.folder)!r})))
    await launcher.ensure(Service(ServiceName("sleeps"), ("/bin/sleep", "3600")))
    print(await launcher.keeper_pid(), flush=True)
    await trio.sleep_forever()

trio.run(main)
"""
    with subprocess.Popen([sys.executable, "-c", core], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        keeper = int(await trio.to_thread.run_sync(process.stdout.readline))
        os.killpg(process.pid, signal.SIGKILL)

    assert await place.keeper.keeper_pid() == keeper
    assert (await place.launcher.status(ServiceName("sleeps"))).running


async def test_another_user_is_not_listened_to_however_the_socket_is_reached(place: Place) -> None:
    await place.launcher.names()
    path = HostFolders(place.folder).keeper_socket
    mode = path.stat().st_mode & 0o777
    path.chmod(0o666)
    ask = f"""
import socket
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect({str(path)!r})
    try:
        connection.sendall(b'{{"request": "list"}}\\n')
        print(connection.recv(100))
    except ConnectionError:
        print(b"")
"""

    async def answer_to(user: int) -> str:
        asked = await trio.run_process(["/usr/bin/python3", "-c", ask], capture_stdout=True, user=user)
        return asked.stdout.decode().strip()

    assert mode == 0o600
    assert await answer_to(33) == "b''"
    assert "services" in await answer_to(0)


async def test_requests_that_are_none_are_refused_and_the_next_one_is_answered(place: Place) -> None:
    await place.launcher.names()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(HostFolders(place.folder).keeper_socket))
        connection.settimeout(30)
        lines = connection.makefile("r")
        replies = []
        for request in (b"no json", b"[]", b'{"request": "run"}', b'{"request": "stop", "name": "../x"}', b'"\xff"'):
            connection.sendall(request + b"\n")
            replies.append(json.loads(lines.readline()))
        connection.sendall(b'{"request": "list"}\n')
        last = json.loads(lines.readline())

    assert all(reply.keys() == {"error"} for reply in replies)
    assert last["answer"]["services"] == {}


async def test_only_a_socket_of_an_earlier_keeper_is_replaced(place: Place) -> None:
    await place.launcher.names()
    path = HostFolders(place.folder).keeper_socket
    await kill_the_keeper(place)
    assert path.is_socket()
    await place.launcher.names()
    await kill_the_keeper(place)
    path.unlink()
    path.write_text("somebody's")

    with pytest.raises(LauncherError, match=r"keeper\.log"):
        await place.launcher.names()

    assert path.read_text() == "somebody's"
    assert "is not a socket" in (place.folder / "logs" / "keeper.log").read_text()
    path.unlink()


async def test_a_socket_that_another_user_answers_is_no_keeper(place: Place) -> None:
    path = HostFolders(place.folder).keeper_socket
    path.parent.mkdir()
    path.parent.chmod(0o777)
    impostor = f"""
import socket
listening = socket.socket(socket.AF_UNIX)
listening.bind({str(path)!r})
listening.listen()
print("listening", flush=True)
listening.accept()[0].recv(1)
"""
    with subprocess.Popen(["/usr/bin/python3", "-c", impostor], stdout=subprocess.PIPE, user=33) as process:
        assert process.stdout is not None
        await trio.to_thread.run_sync(process.stdout.readline)
        with pytest.raises(LauncherError, match="uid 33"):
            await place.launcher.names()
        process.kill()
    path.unlink()
    path.parent.chmod(0o711)


async def test_a_second_keeper_of_the_same_folder_ends(place: Place) -> None:
    await place.launcher.names()

    second = await trio.run_process([*PROGRAM, str(place.folder)], capture_stderr=True, check=False)

    assert second.returncode == ANOTHER
    assert b"Another keeper" in second.stderr


async def test_processes_and_memory_of_a_service_are_bounded_as_one(place: Place) -> None:
    count = place.folder / "writable" / "count"
    bounded = Limits(cpu_percent=50, memory_mib=64, processes=20)

    many = await place.launcher.ensure(place.service("many", "multiply", str(count), limits=bounded))
    begun = int(await written(count))
    await place.launcher.ensure(place.service("large", "grow", "512", limits=bounded))

    async def killed() -> bool:
        return (await place.launcher.status(ServiceName("large"))).last_exit == "signal 9"

    await until(killed)
    assert many.weaker_limits == ()
    assert begun == 19


async def test_services_of_a_group_have_their_limits_together_and_new_ones_at_once(place: Place) -> None:
    group, began = GroupName("site-1001"), place.folder / "writable"

    def service(name: str, limits: Limits) -> Service:
        return replace(place.service(name, "multiply", str(began / name), limits=limits), limit_group=group)

    counts, fewer, more = [], Limits(processes=20), Limits(processes=60)
    for name in ("one", "two"):
        status = await place.launcher.ensure(service(name, fewer))
        counts.append(int(await written(began / name)))
    await place.launcher.limit(group, more)
    await place.launcher.ensure(service("three", more))
    counts.append(int(await written(began / "three")))
    again = await place.launcher.ensure(service("two", more))

    # Processes that are begun by those of the group: they themselves are let into it in any case.
    assert 10 < sum(counts[:2]) <= 20
    assert 20 < sum(counts) <= 60
    assert again.pid == status.pid


def _groups(place: Place) -> set[str]:
    """Limit groups of this keeper in any hierarchy."""
    ours = f"*/svc-keeper-{place.folder.stat().st_ino}/limit_groups/*"
    find = ("find", "/sys/fs/cgroup", "-maxdepth", "6", "-type", "d", "-path", ours, "-printf", "%f\\n")
    return set(subprocess.run(find, capture_output=True, text=True, check=False).stdout.split())


async def test_the_group_of_commands_that_have_ended_goes_with_the_next_command_or_service(place: Place) -> None:
    one, two, limits = GroupName("site-1001"), GroupName("site-1002"), Limits(processes=20)

    async def run(group: GroupName, *command: str) -> None:
        await trio.run_process([*await place.launcher.within(group, limits), *command])

    await run(one, "/bin/true")
    after_one = _groups(place)
    await run(two, "/bin/true")
    after_two = _groups(place)
    service = replace(place.service("web", "serve", "x", listens=True, limits=limits), limit_group=two)
    await place.launcher.ensure(service)
    await place.launcher.stop(service.name)

    assert after_one == {"site-1001", "commands"}
    assert after_two == {"site-1002", "commands"}
    assert _groups(place) == set()


async def test_a_command_outlives_the_last_service_of_its_group_within_the_same_limits(place: Place) -> None:
    group, limits = GroupName("site-1001"), Limits(processes=20)
    service = replace(place.service("web", "serve", "x", listens=True, limits=limits), limit_group=group)
    await place.launcher.ensure(service)
    beginning = await place.launcher.within(group, limits)
    async with trio.open_nursery() as nursery:
        process = await nursery.start(trio.run_process, [*beginning, "/bin/sleep", "1000"])
        cgroup = Path(f"/proc/{process.pid}/cgroup")

        async def joined() -> bool:
            return "site-1001/commands" in cgroup.read_text()

        await until(joined)
        await place.launcher.stop(service.name)
        left, runs = _groups(place), place.alive(process.pid)
        nursery.cancel_scope.cancel()

    assert runs
    assert left == {"site-1001", "commands"}


FORKING = """import os, time
reading, writing = os.pipe()
while True:
    try:
        child = os.fork()
    except OSError:
        time.sleep(0.05)
        continue
    if child == 0:
        os.close(writing)
        os.read(reading, 1)  # Ends with the first process.
        os._exit(0)
"""


async def test_health_names_the_site_whose_group_is_busy_or_full(
    place: Place, panel_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A machine that has much else to do gives it less than a quarter of a processor.
    monkeypatch.setattr(busiest, "_NOTABLE_SHARE", 0.005)
    group = GroupName("site-990001")
    large = replace(place.service("large", "regrow", "512", limits=Limits(memory_mib=48)), limit_group=group)
    looking = busiest.TopConsumers(panel_database, SystemVitals(), {}, {}, ())

    async def named() -> bool:
        return "s990001 uses " in await looking.of_processor()

    async def killed() -> bool:
        return await looking.of_memory() == " Programs were killed at the memory limit of s990001."

    async with trio.open_nursery() as nursery:
        beginning = await place.launcher.within(group, Limits(memory_mib=48))
        process = await nursery.start(trio.run_process, [*beginning, PYTHON, "-c", "while True: pass"])
        await until(named)
        before = await looking.of_memory()
        await place.launcher.ensure(large)
        await until(killed)
        alive = place.alive(process.pid)
        await place.launcher.stop(large.name)
        nursery.cancel_scope.cancel()

    assert "s990001" not in before
    assert alive, "the largest one was killed"


async def test_health_names_the_site_that_meets_its_limit_of_processes(place: Place, panel_database: Database) -> None:
    group, limits = GroupName("site-990001"), Limits(processes=5)
    looking = busiest.TopConsumers(panel_database, SystemVitals(), {}, {}, ())

    async def named() -> bool:
        return "s990001 reached the process limit." in await looking.of_processor()

    async with trio.open_nursery() as nursery:
        beginning = await place.launcher.within(group, limits)
        await nursery.start(trio.run_process, [*beginning, PYTHON, "-c", FORKING])
        await until(named)
        nursery.cancel_scope.cancel()


async def test_a_keeper_of_a_release_that_could_not_be_joined_is_replaced_and_what_it_holds_goes_on(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = await place.launcher.ensure(place.service("web", "serve", "hello", listens=True))
    older, asked = await place.keeper.keeper_pid(), place.keeper._ask

    async def ask(request: dict[str, Any], longer: float = 0.0) -> Any:
        answer = await asked(request, longer)
        if request["request"] == "list" and answer["pid"] == older:
            del answer["joins"]
        return answer

    monkeypatch.setattr(place.keeper, "_ask", ask)
    beginning = await place.launcher.within(GroupName("site-1001"), Limits())
    done = await trio.run_process([*beginning, "/bin/echo", "ran"], capture_stdout=True)

    assert done.stdout == b"ran\n"
    assert await place.keeper.keeper_pid() != older
    assert (await place.launcher.status(ServiceName("web"))).pid == held.pid
    assert not place.alive(older)


async def test_a_keeper_that_another_core_is_just_starting_is_waited_for(place: Place) -> None:
    log = place.folder / "logs" / "keeper.log"
    run = HostFolders(place.folder).run
    run.mkdir(mode=0o711)
    answered: list[int] = []

    async def ask() -> None:
        answered.append(await place.keeper.keeper_pid())

    async with trio.open_nursery() as nursery:
        with (run / "keeper.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            nursery.start_soon(ask)
            await written(log, "Another keeper")
        await _started(place, [*PROGRAM, str(place.folder)])

    assert answered == [await place.keeper.keeper_pid()]


async def test_without_control_groups_limits_are_those_of_setrlimit_and_the_status_says_so(place: Place) -> None:
    hidden = "mount -t tmpfs tmpfs /sys/fs/cgroup"
    count = place.folder / "writable" / "count"
    bounded = Limits(cpu_percent=50, memory_mib=64, processes=20)
    async with keeper_after(hidden, place):
        # As accounts that run nothing else here: setrlimit(2) counts the processes of a user.
        large = await place.launcher.ensure(place.service("large", "grow", "512", limits=bounded, user="news"))
        many = await place.launcher.ensure(place.service("many", "multiply", str(count), limits=bounded, user="games"))
        begun = int(await written(count))
        serving = await place.launcher.ensure(place.service("web", "serve", "hello", listens=True))
        await place.launcher.stop(ServiceName("many"))
        owned = [entry for entry in Path("/proc").iterdir() if entry.name.isdecimal() and _is_of(entry, 5)]

        async def failed() -> bool:
            return (await place.launcher.status(ServiceName("large"))).last_exit == "exit status 1"

        await until(failed)
        for name in await place.launcher.names():
            await place.launcher.stop(name)

    assert [line.split(":")[0] for line in large.weaker_limits] == ["memory", "processes", "processor"]
    assert serving.weaker_limits == ()
    assert many.running
    assert begun == 19
    assert owned == []


@asynccontextmanager
async def keeper_after(prepared: str, place: Place) -> AsyncIterator[None]:
    """A keeper in a mount namespace of its own, in which `prepared` was run."""
    program = f"{prepared} && exec {' '.join(PROGRAM)} {place.folder}"

    with subprocess.Popen(["unshare", "--mount", "sh", "-c", program]) as keeper:
        await until(lambda: _listens(place))
        try:
            yield
        finally:
            keeper.kill()


def _is_of(process: Path, uid: int) -> bool:
    try:
        return process.stat().st_uid == uid and process.joinpath("stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


async def test_supplementary_groups_are_those_of_the_user(place: Place, tmp_path: Path) -> None:
    groups = tmp_path / "group"
    groups.write_text(Path("/etc/group").read_text() + "shared:x:4242:www-data\n")
    bound = f"mount --bind {groups} /etc/group"
    async with keeper_after(bound, place):
        status = await place.launcher.ensure(place.service("web", "serve", "hello", listens=True))
        lines = (place.proc(status.pid) / "status").read_text().splitlines()
        await place.launcher.stop(WEB)

    assert "Groups:\t33 4242 " in lines


async def test_what_its_starter_left_open_is_no_programs_and_nor_is_its_limit(place: Place) -> None:
    with (place.folder / "secret").open("w") as left:
        os.set_inheritable(left.fileno(), True)
        await _started(place, [*PROGRAM, str(place.folder)], left.fileno())
    status = await place.launcher.ensure(place.service("web", "serve", "hello", listens=True))
    await place.greeting("web")

    open_files = [os.readlink(entry) for entry in (place.proc(status.pid) / "fd").iterdir()]
    limits = {pid: _descriptor_limit(pid) for pid in (status.pid, await place.keeper.keeper_pid())}

    assert str(place.folder / "secret") not in open_files
    assert limits[status.pid] == 1024
    assert limits[await place.keeper.keeper_pid()] > 1024


async def test_its_command_becomes_the_small_program(place: Place) -> None:
    await _started(place, [str(Path(sys.executable).with_name("svc")), "panel", "keeper", "--data", str(place.folder)])

    pid = await place.keeper.keeper_pid()

    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    assert words[:-1] == [*PROGRAM, str(place.folder)]
    assert int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") < 15_000_000


async def _started(place: Place, command: list[str], *descriptors: int) -> None:
    """Without the launcher's own start; ended with the place."""
    subprocess.Popen(command, pass_fds=descriptors, start_new_session=True)

    await until(lambda: _listens(place))


def _descriptor_limit(pid: int | None) -> int:
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    return next(int(line.split()[3]) for line in lines if line.startswith("Max open files"))


async def test_it_is_small_with_ten_services_and_does_nothing_at_rest(place: Place) -> None:
    for number in range(10):
        service = place.service(f"sleeps-{number}")
        await place.launcher.ensure(replace(service, command=("/bin/sleep", "3600")))
    pid = await place.keeper.keeper_pid()

    async def rests() -> bool:
        before = _switches(pid)
        await trio.sleep(1)
        return _switches(pid) == before

    await until(rests)
    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    print(f"\nkeeper with 10 services: {resident / 1e6:.1f} MB resident")
    assert resident < 15_000_000


def _switches(pid: int) -> list[str]:
    """How often it was let run: it never is while nothing happens."""
    return [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "ctxt_switches" in line]
