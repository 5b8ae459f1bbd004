"""What a launcher promises, tried with real processes: of the keeper, and of systemd."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from svc_webhost.folders import HostFolders
from svc_webhost.launcher import GroupName, LauncherError, Limits, ListeningPort, ServiceName, ServiceStatus
from svc_webhost.launcher_keeper import KeeperLauncher
from svc_webhost.launcher_systemd import SystemdLauncher
from svc_webhost.launchers import launcher_of
from tests.support.launchers import PYTHON, Place, keeper_place, systemd_place, until, written
from tests.support.stack import free_port
from tests.support.systemd_root import SMALL, SystemdRoot, systemd_root

pytestmark = [pytest.mark.system, pytest.mark.isolated]


@pytest.fixture(scope="module")
def systemd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemdRoot]:
    with systemd_root(tmp_path_factory.mktemp("systemd"), SMALL) as root:
        yield root


@pytest.fixture(params=["keeper", "systemd"])
def host(request: pytest.FixtureRequest) -> SystemdRoot | None:
    """None: this one, with a keeper."""
    return request.getfixturevalue("systemd") if request.param == "systemd" else None


@pytest.fixture
async def place(host: SystemdRoot | None) -> AsyncIterator[Place]:
    async with keeper_place() if host is None else systemd_place(host) as place:
        yield place


def test_the_control_groups_of_a_debian_of_the_tests_are_its_own(systemd: SystemdRoot) -> None:
    """Other tests boot some at the same time, with units of the same names."""
    groups = Path(f"/proc/{systemd.init}/cgroup").read_text().splitlines()
    seen_inside = systemd.run("cat", "/proc/1/cgroup").splitlines()

    assert [line for line in groups if re.fullmatch(r"0::.*/svc-test-[0-9a-f]{8}/init\.scope", line)]
    assert "0::/init.scope" in seen_inside


async def test_an_equal_definition_leaves_the_process_alone(place: Place) -> None:
    service = place.service("web", "serve", "hello", listens=True)

    first = await place.launcher.ensure(service)
    again = await place.launcher.ensure(service)

    assert first.running
    assert again.pid == first.pid
    assert again.since == first.since
    assert await place.greeting("web") == f"hello {first.pid}"
    assert await place.launcher.names() == {"web"}


async def test_a_changed_definition_replaces_it_without_a_refused_connection(place: Place) -> None:
    service = place.service("web", "serve", "0", listens=True)
    first = await place.launcher.ensure(service)
    heard: list[str] = []
    finished = trio.Event()

    async def connect_all_the_time() -> None:
        while not finished.is_set():
            heard.append((await place.greeting("web")).split()[0])

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(connect_all_the_time)
        for number in range(6):
            await place.launcher.ensure(replace(service, command=(*service.command[:-1], str(number))))
            await _heard(heard, str(number))
        finished.set()

    assert set(heard) == {"0", "1", "2", "3", "4", "5"}
    assert (await place.launcher.status(service.name)).restarts == first.restarts == 0


async def test_a_port_stays_bound_while_the_service_is_replaced_and_is_free_after_its_end(place: Place) -> None:
    at = ListeningPort("127.0.0.1", free_port(), "LISTENING")
    service = replace(place.service("web", "serve", "0"), ports=(at,))
    await place.launcher.ensure(service)
    heard: list[str] = []
    finished = trio.Event()

    async def connect_all_the_time() -> None:
        while not finished.is_set():
            heard.extend(greeting.split()[0] for greeting in await place.greetings_at(at.port, 50))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(connect_all_the_time)
        for number in range(4):
            await place.launcher.ensure(replace(service, command=(*service.command[:-1], str(number))))
            await _heard(heard, str(number))
        await place.launcher.restart(service.name)
        finished.set()
    await place.launcher.stop(service.name)

    assert set(heard) == {"0", "1", "2", "3"}
    with pytest.raises(subprocess.CalledProcessError):
        await place.greetings_at(at.port, 1)


async def test_a_port_of_another_program_is_named(place: Place) -> None:
    at = ListeningPort("127.0.0.1", free_port(), "LISTENING")
    await place.launcher.ensure(replace(place.service("first", "serve", "first"), ports=(at,)))

    with pytest.raises(LauncherError, match=str(at.port)):
        await place.launcher.ensure(replace(place.service("second", "serve", "second"), ports=(at,)))

    assert {greeting.split()[0] for greeting in await place.greetings_at(at.port, 2)} == {"first"}


@pytest.mark.parametrize("nonblocking", [False, True])
async def test_sockets_are_handed_over_as_the_service_waits_for_them(place: Place, nonblocking: bool) -> None:
    at = ListeningPort("127.0.0.1", free_port(), "LISTENING")
    service = replace(place.service("web", "serve", "hello"), ports=(at,), nonblocking=nonblocking)

    status = await place.launcher.ensure(service)

    described = (place.proc(status.pid) / "fdinfo" / "3").read_text()
    [flags] = [int(line.split()[1], 8) for line in described.splitlines() if line.startswith("flags")]
    assert bool(flags & os.O_NONBLOCK) == nonblocking


async def test_what_ends_by_itself_is_started_again(place: Place) -> None:
    first = await place.launcher.ensure(place.service("web", "serve", "hello", listens=True))
    assert first.pid is not None

    place.kill(first.pid)

    async def back() -> bool:
        status = await place.launcher.status(ServiceName("web"))
        return status.running and status.pid != first.pid

    await until(back)
    status = await place.launcher.status(ServiceName("web"))
    assert status.restarts == (await place.launcher.restarts())[ServiceName("web")] == 1
    assert await place.greeting("web") == f"hello {status.pid}"


async def _heard(greetings: list[str], greeting: str) -> None:
    async def last() -> bool:
        return greetings[-1:] == [greeting]

    await until(last)


async def test_stopping_ends_everything_that_it_started_and_unbinds_its_socket(place: Place) -> None:
    left = place.folder / "writable" / "left"
    service = place.service("forks", "leave", str(left), listens=True)
    status = await place.launcher.ensure(service)
    stray = int(await written(place.seen(left)))
    assert status.pid is not None
    assert place.alive(stray)

    await place.launcher.stop(service.name)
    await place.launcher.stop(service.name)

    assert not place.alive(stray)
    assert not place.alive(status.pid)
    assert not place.seen(place.socket("forks")).exists()
    assert await place.launcher.names() == set()
    assert not (await place.launcher.status(service.name)).running


async def test_one_on_demand_begins_with_whoever_connects_and_again_after_a_rest(place: Place) -> None:
    service = replace(place.service("web", "serve", "hello", listens=True), on_demand=True)

    ensured = await place.launcher.ensure(service)
    first = await place.greeting("web")
    running = await place.launcher.processes()
    await place.launcher.stop_idle(service.name)
    rested = await place.launcher.ensure(service)
    names = await place.launcher.names()
    second = await place.greeting("web")

    assert not ensured.running
    assert first == f"hello {running[service.name]}"
    assert not rested.running
    assert names == {"web"}
    assert second == f"hello {(await place.launcher.processes())[service.name]}"
    assert second != first


async def test_nobody_who_connects_is_refused_by_one_that_goes_to_rest(place: Place) -> None:
    service = replace(place.service("web", "serve", "hello", listens=True), on_demand=True)
    await place.launcher.ensure(service)
    heard: list[str] = []
    finished = trio.Event()

    async def connect_all_the_time() -> None:
        while not finished.is_set():
            heard.append(await place.greeting("web"))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(connect_all_the_time)
        await _heard_another(heard, None)
        for _ in range(6):
            last = heard[-1]
            await place.launcher.stop_idle(service.name)
            await _heard_another(heard, last)
        finished.set()

    assert {greeting.split()[0] for greeting in heard} == {"hello"}


async def _heard_another(greetings: list[str], last: str | None) -> None:
    async def another() -> bool:
        return bool(greetings) and greetings[-1] != last

    await until(another)


async def test_what_does_not_stop_in_time_is_killed(place: Place) -> None:
    service = place.service("slow", "leave", str(place.folder / "writable" / "left"), stop_seconds=0.5)
    stubborn = replace(service, command=("/bin/sh", "-c", "trap '' TERM; while :; do sleep 1; done"))
    status = await place.launcher.ensure(stubborn)
    assert status.pid is not None

    await place.launcher.stop(service.name)

    assert not place.alive(status.pid)


async def test_it_gets_exactly_its_environment_and_nothing_else_that_is_open(place: Place) -> None:
    odd = {"PLAIN": "1", "QUOTED": "a \"b\" 'c' $HOME `id` \\ %n %%", "LINES": "one\ntwo", "EMPTY": "", "UTF": "grün"}
    status = await place.launcher.ensure(place.service("web", "serve", "x", environment=odd, listens=True))
    await place.greeting("web")

    process = place.proc(status.pid)
    given = dict(one.split("=", 1) for one in (process / "environ").read_text().split("\0") if one)
    open_files = {int(entry.name): os.readlink(entry) for entry in (process / "fd").iterdir()}

    assert given == odd | {"LISTENING": "3"}
    # Its standard streams, the socket, and the pipe that the program itself made.
    assert open_files[0] == "/dev/null"
    assert open_files[1] == open_files[2] == str(place.folder / "web.log")
    assert open_files[3].startswith("socket:")
    assert all(target.startswith("pipe:") for number, target in open_files.items() if number > 3)
    assert len(open_files) == 6


async def test_it_runs_as_its_user_with_that_users_groups(place: Place) -> None:
    status = await place.launcher.ensure(place.service("web", "serve", "x", user="www-data", listens=True))

    lines = dict(line.split(":", 1) for line in (place.proc(status.pid) / "status").read_text().splitlines())
    bound = place.seen(place.socket("web")).stat()

    assert lines["Uid"].split() == ["33"] * 4
    assert lines["Gid"].split() == ["33"] * 4
    assert lines["Groups"].split() == ["33"]
    assert (bound.st_uid, bound.st_gid, bound.st_mode & 0o777) == (33, 33, 0o660)


async def test_what_it_writes_is_appended_to_its_log(place: Place) -> None:
    service = place.service("talks")
    for word in ("one", "two"):
        await place.launcher.ensure(replace(service, command=("/bin/sh", "-c", f"echo {word}; exec sleep 3600")))
        assert service.log is not None
        log = place.seen(service.log)
        await written(log, word)

    assert log.read_text() == "one\ntwo\n"


async def test_reloading_is_a_hangup_signal(place: Place) -> None:
    service = place.service("reloads")
    command = ("/bin/sh", "-c", "trap 'echo reloaded' HUP; echo ready; while :; do sleep 0.1; done")
    await place.launcher.ensure(replace(service, command=command))
    assert service.log is not None
    log = place.seen(service.log)
    await written(log, "ready")

    await place.launcher.reload(service.name)

    await written(log, "reloaded")
    with pytest.raises(LauncherError):
        await place.launcher.reload(ServiceName("unknown"))


async def test_one_that_is_restarted_is_another_process_on_the_same_socket_and_one_at_rest_stays_there(
    place: Place,
) -> None:
    service = place.service("web", "serve", "hello", listens=True)
    resting = replace(place.service("idle", "serve", "idle", listens=True), on_demand=True)
    first = await place.launcher.ensure(service)
    await place.launcher.ensure(resting)

    await place.launcher.restart(service.name)
    await place.launcher.restart(resting.name)
    greeting = await place.greeting("web")
    second = await place.launcher.status(service.name)

    assert second.pid != first.pid
    assert greeting == f"hello {second.pid}"
    assert second.restarts == first.restarts
    assert not (await place.launcher.status(resting.name)).running


async def test_a_definition_that_cannot_run_is_refused_and_what_ran_goes_on(place: Place) -> None:
    service = place.service("web", "serve", "hello", listens=True)
    first = await place.launcher.ensure(service)

    for broken in (
        replace(service, command=("/no/such/program",)),
        replace(service, user="nobody-of-that-name"),
        replace(service, log=Path("/no/such/folder/log")),
    ):
        with pytest.raises(LauncherError):
            await place.launcher.ensure(broken)

    assert await place.greeting("web") == f"hello {first.pid}"


async def test_the_socket_of_an_earlier_process_is_replaced_and_a_file_is_not(place: Place) -> None:
    left = place.seen(place.socket("web"))
    left.write_text("somebody's")
    with pytest.raises(LauncherError):
        await place.launcher.ensure(place.service("web", "serve", "hello", listens=True))
    kept = left.read_text()
    await place.launcher.stop(ServiceName("web"))
    left.unlink()
    with trio.socket.socket(trio.socket.AF_UNIX) as earlier:
        await earlier.bind(str(left))

    status = await place.launcher.ensure(place.service("web", "serve", "hello", listens=True))

    assert kept == "somebody's"
    assert await place.greeting("web") == f"hello {status.pid}"


async def test_no_socket_is_bound_where_others_may_write(place: Place) -> None:
    service = place.service("web", "serve", "hello", listens=True)
    listening = replace(service.sockets[0], path=place.folder / "writable" / "web.sock")

    with pytest.raises(LauncherError):
        await place.launcher.ensure(replace(service, sockets=(listening,)))

    assert not place.seen(listening.path).exists()


async def test_limits_are_those_of_the_unit_and_what_nobody_holds_is_said(systemd: SystemdRoot) -> None:
    async with systemd_place(systemd) as place:
        limits = Limits(cpu_percent=50, memory_mib=64, processes=20)
        status = await place.launcher.ensure(place.service("web", "serve", "x", listens=True, limits=limits))
        wanted = "--property=MemoryMax,MemorySwapMax,TasksMax,CPUQuotaPerSecUSec"
        shown = systemd.run("systemctl", "show", wanted, "svc-host-web.service").splitlines()

    held = Path(f"/proc/{systemd.init}/root/sys/fs/cgroup/cgroup.controllers").read_text().split()
    assert set(shown) == {"MemoryMax=67108864", "MemorySwapMax=0", "TasksMax=20", "CPUQuotaPerSecUSec=500ms"}
    assert len(status.weaker_limits) == 3 - len({"memory", "pids", "cpu"} & set(held))


async def test_limits_of_a_group_are_those_of_its_slice_and_changed_without_a_restart(systemd: SystemdRoot) -> None:
    group, wanted = GroupName("site-1001"), "--property=MemoryMax,MemorySwapMax,TasksMax,CPUQuotaPerSecUSec"
    async with systemd_place(systemd) as place:
        limits = Limits(cpu_percent=50, memory_mib=64, processes=20)
        service = replace(place.service("web", "serve", "x", listens=True, limits=limits), limit_group=group)
        first = await place.launcher.ensure(service)
        in_slice = systemd.run("systemctl", "show", "--property=Slice", "--value", "svc-host-web.service").strip()
        before = systemd.run("systemctl", "show", wanted, in_slice).splitlines()
        changed = Limits(memory_mib=128)
        await place.launcher.limit(group, changed)
        after = systemd.run("systemctl", "show", wanted, in_slice).splitlines()
        again = await place.launcher.ensure(replace(service, limits=changed))
        await place.launcher.stop(service.name)
        left = systemd.run("systemctl", "show", wanted, in_slice).splitlines()

    assert in_slice == "svc-site-1001.slice"
    assert set(before) == {"MemoryMax=67108864", "MemorySwapMax=0", "TasksMax=20", "CPUQuotaPerSecUSec=500ms"}
    assert "MemoryMax=134217728" in after
    assert "CPUQuotaPerSecUSec=infinity" in after
    assert again.pid == first.pid
    assert "MemoryMax=infinity" in left


async def test_all_groups_together_are_beside_a_service_that_has_none(place: Place) -> None:
    """The processor is shared among control groups beside each other: a web server among a hundred sites would have a
    hundredth of it."""
    web = place.service("web", "serve", "x", listens=True)
    sites = [
        replace(place.service(f"php-{number}", "serve", "x", listens=True), limit_group=GroupName(f"site-{number}"))
        for number in (1001, 1002)
    ]

    of_web, *of_sites = [_control_group(place, await place.launcher.ensure(each)) for each in (web, *sites)]

    together = os.path.commonpath(of_sites)
    assert len({os.path.relpath(each, together).split("/")[0] for each in of_sites}) == 2
    assert os.path.commonpath([together, of_web]) != together


async def test_a_command_is_bounded_with_the_services_of_its_group(place: Place) -> None:
    group, limits = GroupName("site-1001"), Limits(cpu_percent=50, memory_mib=64, processes=20)
    service = replace(place.service("web", "serve", "x", listens=True, limits=limits), limit_group=group)
    status = await place.launcher.ensure(service)
    # As those see it who are there: control groups have namespaces.
    shown = await trio.run_process([*place.enter, "cat", f"/proc/{status.pid}/cgroup"], capture_stdout=True)
    of_service = shown.stdout.decode().split()

    beginning = await place.launcher.within(group, limits)
    shows = (PYTHON, "-c", "print(open('/proc/self/cgroup').read())")
    done = await trio.run_process([*place.enter, *beginning, *shows], capture_stdout=True)

    of_command = done.stdout.decode().split()
    together = [line for line in map(os.path.dirname, of_service) if "site" in line]
    assert together
    assert [line for line in map(os.path.dirname, of_command) if "site" in line] == together


async def test_a_command_that_cannot_be_bounded_is_not_run(place: Place) -> None:
    beginning = await place.launcher.within(GroupName("site-1001"), Limits(processes=20))
    refused = [word.replace("20", "x") for word in beginning]

    done = await trio.run_process(
        [*place.enter, *refused, "/bin/echo", "it ran"], capture_stdout=True, capture_stderr=True, check=False
    )

    assert done.returncode != 0
    assert done.stdout == b""


def _control_group(place: Place, status: ServiceStatus) -> str:
    """Its place in the hierarchy of version 2."""
    lines = (place.proc(status.pid) / "cgroup").read_text().splitlines()
    return next(line for line in lines if line.startswith("0::")).removeprefix("0::")


async def test_no_other_user_sees_the_environment_of_a_unit(systemd: SystemdRoot) -> None:
    async with systemd_place(systemd) as place:
        await place.launcher.ensure(place.service("web", "serve", "x", environment={"KEY": "planted"}, listens=True))
        read = "cat /run/systemd/system/svc-host-* /run/svc-host/*; systemctl show svc-host-web.service"
        seen = systemd.run("setpriv", "--reuid=33", "--regid=33", "--clear-groups", "sh", "-c", read, check=False)

    assert "EnvironmentFile=/run/svc-host/web.env" in seen
    assert "planted" not in seen


@pytest.mark.parametrize("name", ["../escape", "Upper", "", "a b", "a.service"])
async def test_a_name_that_would_be_another_file_is_refused(place: Place, name: str) -> None:
    with pytest.raises(LauncherError):
        await place.launcher.ensure(replace(place.service("web", "serve", "x"), name=ServiceName(name)))
    with pytest.raises(LauncherError):
        await place.launcher.stop(ServiceName(name))


def test_systemd_is_the_launcher_where_it_is_the_first_process(tmp_path: Path) -> None:
    folders = HostFolders(tmp_path)

    assert isinstance(launcher_of(folders, systemd=tmp_path), SystemdLauncher)
    assert isinstance(launcher_of(folders, systemd=tmp_path / "absent"), KeeperLauncher)
