"""The helper process itself: what it can reach, what its death leaves, and how the core speaks with it."""

from __future__ import annotations

import ast
import base64
import hashlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import trio
import trio.testing

from svc_common.errors import ErrorCode, ServiceError
from svc_webhost import confined, confined_client
from svc_webhost.confined import kernel
from svc_webhost.confined.confine import ConfinementError, Identity, confine, start_no_processes
from svc_webhost.confined.protocol import (
    Compress,
    Extract,
    ListFolder,
    MakeFolder,
    Read,
    Stat,
    UploadOpen,
    UploadPlace,
    UploadVerify,
    UploadWrite,
    Write,
)
from svc_webhost.confined_client import ConfinedFiles, SiteFolder
from tests.support.site_files import give, site_folder

PACKAGE = Path(kernel.__file__).parent


@pytest.fixture
async def files() -> AsyncIterator[ConfinedFiles]:
    async with ConfinedFiles.open() as opened:
        yield opened


@pytest.fixture
def site(tmp_path: Path) -> SiteFolder:
    return site_folder(tmp_path)


def helpers_of(site: SiteFolder) -> list[int]:
    """The processes that hold the site's folder as a descriptor, this one aside."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            links = [os.readlink(link) for link in (process / "fd").iterdir()]
            if str(site.path) in links and int(process.name) != os.getpid():
                found.append(int(process.name))
    return found


async def gone(pid: int) -> None:
    with trio.fail_after(60):
        while Path(f"/proc/{pid}/fd").exists() and os.listdir(f"/proc/{pid}/fd"):
            await trio.sleep(0.01)


def test_what_runs_confined_knows_the_standard_library_alone() -> None:
    places = ("confined", "archives", "apache", "htaccess", "accepted", "assets", "file_types")
    own = tuple(f"svc_webhost.{place}" for place in places)

    imported = {
        name
        for place in places
        for path in (*PACKAGE.with_name(place).glob("*.py"), *PACKAGE.parent.glob(f"{place}.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }

    assert {n for n in imported if n.split(".")[0] not in sys.stdlib_module_names and not n.startswith(own)} == set()


@pytest.mark.system
@pytest.mark.isolated
def test_a_confined_process_reaches_nothing_but_its_folder(tmp_path: Path) -> None:
    own, other = site_folder(tmp_path, 1001), site_folder(tmp_path, 1002)
    give(own, "mine")
    open_to_all = give(other, "theirs")
    for path in (tmp_path, tmp_path.parent, other.path):
        path.chmod(0o777)
    open_to_all.chmod(0o666)
    reading, writing = os.pipe()
    root = os.open(own.path, os.O_PATH | os.O_DIRECTORY)
    attempts: dict[str, Callable[[], object]] = {
        "own": lambda: os.close(os.open("mine", os.O_RDWR, dir_fd=root)),
        "other": lambda: os.close(os.open(open_to_all, os.O_RDONLY)),
        "other's folder": lambda: os.listdir(other.path),
        "new in other": lambda: os.close(os.open(other.path / "new", os.O_CREAT | os.O_WRONLY)),
        "passwd": lambda: os.close(os.open("/etc/passwd", os.O_RDONLY)),
        "proc": lambda: os.listdir("/proc"),
        "own memory": lambda: os.close(os.open("/proc/self/mem", os.O_RDONLY)),
        "signal": lambda: os.kill(os.getppid(), 0),
        "process": os.fork,
        "program": lambda: os.execv("/bin/true", ["true"]),
        "root again": lambda: os.setuid(0),
        "groups": lambda: os.setgroups([0]),
        "device": lambda: os.mknod("disk", 0o060666, 0, dir_fd=root),
    }

    child = os.fork()
    if child == 0:
        confine(root, Identity(own.uid, own.gid), without_landlock=False)
        start_no_processes()
        reached = []
        for name, attempt in attempts.items():
            with suppress(OSError):
                attempt()
                reached.append(name)
        os.write(writing, json.dumps([reached, os.getgroups(), os.getresuid()]).encode())
        os._exit(0)
    os.waitpid(child, 0)
    reached, groups, users = json.loads(os.read(reading, 10_000))
    for descriptor in (root, reading, writing):
        os.close(descriptor)

    assert reached == ["own"]
    assert groups == []
    assert users == [own.uid] * 3


def test_nobody_is_confined_as_root(tmp_path: Path) -> None:
    with pytest.raises(ConfinementError):
        confine(0, Identity(0, 0), without_landlock=False)


async def test_without_landlock_nothing_is_served_unless_that_is_allowed(
    site: SiteFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel without Landlock, played by one whose version is never enough."""
    hidden = tmp_path / "hidden.py"
    beside = str(Path(confined.__file__).parents[2])
    hidden.write_text(
        f"import sys\nsys.path.insert(0, {beside!r})\n"
        "from svc_webhost.confined import kernel, __main__\nkernel.landlock_abi = lambda: 1\n__main__.main()\n"
    )
    real = subprocess.Popen

    def without(command: list[str], **facts: Any) -> Any:
        return real([*command[:-1], str(hidden)], **facts)

    monkeypatch.setattr(subprocess, "Popen", without)

    async with ConfinedFiles.open() as files:
        with pytest.raises(ServiceError) as refused:
            await files.ask(site, ListFolder("", 0, 10))
    async with ConfinedFiles.open(without_landlock=True) as files:
        answer = await files.ask(site, ListFolder("", 0, 10))

    assert refused.value.code is ErrorCode.UNAVAILABLE
    assert "Landlock" in refused.value.message
    assert answer.result["total"] == 0


async def test_helpers_of_several_sites_at_once_come_from_one_forker(
    files: ConfinedFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    real = subprocess.Popen

    def counted(command: list[str], **facts: Any) -> Any:
        started.append(command)
        return real(command, **facts)

    monkeypatch.setattr(subprocess, "Popen", counted)
    async with trio.open_nursery() as nursery:
        for number in range(1001, 1006):
            nursery.start_soon(files.ask, site_folder(tmp_path, number), ListFolder("", 0, 10))
    assert len(files.sites) == 5
    assert len(started) == 1


async def test_a_forker_that_has_no_room_for_orders_is_waited_for(
    files: ConfinedFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = socket.send_fds
    full = [True, True]

    def send(*arguments: Any) -> int:
        if full:
            full.pop()
            raise BlockingIOError
        return real(*arguments)

    monkeypatch.setattr(socket, "send_fds", send)
    answer = await files.ask(site_folder(tmp_path), ListFolder("", 0, 10))
    assert (answer.result["total"], full) == (0, [])


async def test_a_folder_that_is_a_link_or_somebody_elses_is_not_served(files: ConfinedFiles, tmp_path: Path) -> None:
    real = site_folder(tmp_path, 1001)
    (tmp_path / "s1002").symlink_to(real.path)

    for wrong in (
        SiteFolder(tmp_path / "s1002", real.uid, real.gid),
        SiteFolder(real.path, real.uid + 1, real.gid),
        SiteFolder(tmp_path / "s1003", real.uid, real.gid),
    ):
        with pytest.raises(ServiceError) as refused:
            await files.ask(wrong, ListFolder("", 0, 10))
        assert refused.value.code is ErrorCode.UNAVAILABLE


async def test_files_are_the_sites_own(files: ConfinedFiles, site: SiteFolder) -> None:
    await files.ask(site, MakeFolder("public/images", True))
    await files.ask(site, Write("public/index.html", True), b"<h1>hello</h1>")

    answer = await files.ask(site, Read("public/index.html", 4, 5))

    assert answer.payload == b"hello"
    assert {path.stat().st_uid for path in site.path.rglob("*")} == {site.uid}
    assert (site.path / "public" / "index.html").stat().st_mode & 0o777 == 0o644


async def test_a_helper_that_is_killed_is_replaced_for_the_next_request(files: ConfinedFiles, site: SiteFolder) -> None:
    await files.ask(site, Stat(""))
    (first,) = helpers_of(site)

    os.kill(first, signal.SIGKILL)
    await files.ask(site, ListFolder("", 0, 10))

    (second,) = helpers_of(site)
    assert second != first


async def test_a_helper_killed_in_the_middle_of_writing_leaves_the_old_file_whole(
    files: ConfinedFiles, site: SiteFolder
) -> None:
    old, new = b"old" * 100_000, b"new" * 2_000_000
    give(site, "page", old)
    outcomes = []

    for round_ in range(20):
        await files.ask(site, Stat(""))
        (helper,) = helpers_of(site)
        async with trio.open_nursery() as nursery:

            async def write() -> None:
                try:
                    await files.ask(site, Write("page", True), new)
                except ServiceError as error:
                    outcomes.append(error.code)

            nursery.start_soon(write)
            await trio.sleep(0.0005 * round_)
            os.kill(helper, signal.SIGKILL)
        await gone(helper)
        assert (site.path / "page").read_bytes() in (old, new)
        give(site, "page", old)
    await files.ask(site, Stat(""))

    assert ErrorCode.UNAVAILABLE in outcomes
    assert os.listdir(site.path / ".svc-tmp") == []


async def test_what_takes_too_long_is_ended_and_leaves_nothing_half_done(
    files: ConfinedFiles, site: SiteFolder
) -> None:

    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w") as archive:
        for number in range(20_000):
            archive.addfile(tarfile.TarInfo(f"many/{number}"))
    give(site, "many.tar", into.getvalue())
    await files.ask(site, Stat(""))
    (helper,) = helpers_of(site)

    with pytest.raises(ServiceError) as refused:
        await files.ask(site, Extract("many.tar", "out", False), seconds=0.05)
    await gone(helper)
    await files.ask(site, Stat(""))

    assert refused.value.code is ErrorCode.UNAVAILABLE
    assert not (site.path / "out").exists()
    assert os.listdir(site.path / ".svc-tmp") == []


async def test_reading_goes_on_beside_a_long_change(files: ConfinedFiles, site: SiteFolder) -> None:
    give(site, "page", b"hello")
    with give(site, "large").open("r+b") as large:
        # A hole: it takes no room, and an hour to be packed.
        large.truncate(1 << 40)

    def under_way() -> bool:
        temporary = site.path / ".svc-tmp"
        return temporary.exists() and os.listdir(temporary) != []

    async with trio.open_nursery() as nursery:
        pack = partial(files.ask, site, Compress(["large"], "packed.zip", "zip"), seconds=3600)
        nursery.start_soon(pack)
        with trio.fail_after(60):
            while not under_way():
                await trio.sleep(0.01)
        answer = await files.ask(site, Read("page", 0, 5), seconds=60)
        still_under_way = under_way()
        nursery.cancel_scope.cancel()

    assert answer.payload == b"hello"
    assert still_under_way


async def test_an_idle_helper_ends(site: SiteFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confined_client, "IDLE_SECONDS", 0.05)

    async with ConfinedFiles.open() as files:
        await files.ask(site, Stat(""))
        with trio.fail_after(60):
            while files.sites:
                await trio.sleep(0.01)
        with trio.fail_after(60):
            while helpers_of(site):
                await trio.sleep(0.01)
        again = await files.ask(site, Stat(""))

    assert again.result["kind"] == "folder"


async def test_helpers_end_with_the_core(site: SiteFolder) -> None:
    async with ConfinedFiles.open() as files:
        await files.ask(site, Stat(""))
        (helper,) = helpers_of(site)

    await gone(helper)

    assert helpers_of(site) == []


async def test_parts_of_an_upload_come_in_any_order_overlap_and_repeat(files: ConfinedFiles, site: SiteFolder) -> None:
    content = os.urandom(3_000_000)
    upload = uuid4().hex
    await files.ask(site, UploadOpen(upload))
    starts = [2_500_000, 0, 2_000_000, 1_000_000, 500_000, 1_500_000, 1_250_000, 0]

    async with trio.open_nursery() as nursery:
        for start in starts:
            part = content[start : start + 500_000]
            nursery.start_soon(files.ask, site, UploadWrite(upload, start), base64.b64encode(part))
    verified = await files.ask(
        site, UploadVerify(upload, "video.mp4", len(content), hashlib.sha256(content).hexdigest())
    )
    await files.ask(site, UploadPlace(upload, "video.mp4", False))

    assert verified.result == {"placed": False}
    assert (site.path / "video.mp4").read_bytes() == content
    assert (site.path / "video.mp4").stat().st_mode & 0o777 == 0o644


async def test_an_upload_survives_its_helper_and_is_refused_with_a_wrong_sum(
    files: ConfinedFiles, site: SiteFolder
) -> None:
    upload = uuid4().hex
    await files.ask(site, UploadOpen(upload))
    await files.ask(site, UploadWrite(upload, 0), base64.b64encode(b"first "))
    (helper,) = helpers_of(site)
    os.kill(helper, signal.SIGKILL)
    await gone(helper)
    await files.ask(site, UploadWrite(upload, 6), base64.b64encode(b"second"))

    with pytest.raises(ServiceError) as refused:
        await files.ask(site, UploadVerify(upload, "video.mp4", 12, "0" * 64))
    right = await files.ask(site, UploadVerify(upload, "video.mp4", 12, hashlib.sha256(b"first second").hexdigest()))

    assert refused.value.code is ErrorCode.INVALID
    assert right.result == {"placed": False}


async def test_an_upload_that_nobody_comes_back_for_is_removed(files: ConfinedFiles, site: SiteFolder) -> None:
    old, new = uuid4().hex, uuid4().hex
    await files.ask(site, UploadOpen(old))
    await files.ask(site, UploadOpen(new))
    days_ago = time.time() - 3 * 86_400
    os.utime(site.path / ".svc-tmp" / f"upload-{old}", (days_ago, days_ago))

    await files.forget(site)
    await files.ask(site, Stat(""))

    assert os.listdir(site.path / ".svc-tmp") == [f"upload-{new}"]


async def test_a_thousand_files_are_listed_by_one_request(files: ConfinedFiles, site: SiteFolder) -> None:
    (site.path / "many").mkdir()
    for number in range(1000):
        (site.path / "many" / f"file-{number}").touch()

    answer = await files.ask(site, ListFolder("many", 0, 1000))

    assert answer.result["total"] == 1000
    assert {entry["name"] for entry in json.loads(answer.payload)} == {f"file-{number}" for number in range(1000)}
