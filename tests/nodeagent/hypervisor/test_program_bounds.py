"""Programs and libraries that read what strangers made: they have a bound of memory and of what they print, and what
ends them is said in words."""

from __future__ import annotations

import ast
import http.server
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import libvirt
import pytest
import trio

import svc_nodeagent
from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor import programs
from svc_nodeagent.hypervisor.backups import store as stores
from svc_nodeagent.hypervisor.backups.store import store_at
from svc_nodeagent.hypervisor.connection import LibvirtError
from svc_nodeagent.hypervisor.guests import password_failed
from svc_nodeagent.hypervisor.programs import ProgramFailed, run_program, try_program
from svc_nodeagent.protocol import BucketPlace, FailureCode
from tests.nodeagent.hypervisor.test_connection import Heard, connected

MIB = 1024 * 1024


async def test_what_prints_without_end_is_stopped_with_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "MOST_OUTPUT", MIB)
    with trio.fail_after(60), pytest.raises(HostError, match="yes printed more than 1 MiB and was stopped"):
        await run_program("yes")


async def test_programs_run_where_no_disk_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    given = bytes(range(256)) * 4096
    assert await run_program("cat", stdin=given) == given
    assert await run_program("cat") == b""
    with pytest.raises(ProgramFailed, match="sh failed: why it failed") as failed:
        await run_program("sh", "-c", "echo why it failed >&2; exit 3")
    assert failed.value.status == 3


async def test_what_complains_without_end_takes_no_more_memory_than_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with trio.fail_after(60):
        status, _, said = await try_program("sh", "-c", "yes complaint >&2; echo nothing is heard >&2; exit 4")
    assert status == 4
    assert "complaint" in said
    assert len(said) <= programs._MOST_ERROR_BYTES


async def test_a_program_with_a_bound_of_memory_fails_with_words(monkeypatch: pytest.MonkeyPatch) -> None:
    assert programs._MOST_MEMORY["qemu-img"] <= 2 * 1024**3
    monkeypatch.setattr(programs, "_MOST_MEMORY", {"python3": 64 * MIB})
    with pytest.raises(HostError, match="MemoryError"):
        await run_program("python3", "-c", "x = bytearray(1 << 30)")
    assert await run_program("python3", "-c", "print(len(bytearray(1 << 20)))") == b"1048576\n"


async def test_a_store_that_prints_without_end_is_a_failure_with_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restic = tmp_path / "restic"
    restic.write_text("#!/bin/sh\nexec yes\n")
    restic.chmod(0o755)
    monkeypatch.setattr(stores, "_RESTIC", str(restic))
    monkeypatch.setattr(stores, "MOST_OUTPUT", MIB)
    vm_id = uuid4()
    (tmp_path / str(vm_id)).mkdir()
    (tmp_path / str(vm_id) / "config").touch()
    with trio.fail_after(60), pytest.raises(HostError, match="printed more than 1 MiB") as refused:
        await store_at(tmp_path, vm_id, "key", None).listing()
    assert "were not changed" in refused.value.message


class _Endless(http.server.BaseHTTPRequestHandler):
    """A bucket whose listing never ends."""

    protocol_version = "HTTP/1.1"
    page = 0

    def do_HEAD(self) -> None:
        self.send_response(200)
        for name, value in {
            "Content-Length": "155",
            "ETag": '"0"',
            "Last-Modified": "Sat, 28 Nov 2026 00:00:00 GMT",
        }.items():
            self.send_header(name, value)
        self.end_headers()

    def do_GET(self) -> None:
        _Endless.page += 1
        keys = "".join(
            f"<Contents><Key>machines/{_Endless.page:064d}{n:064d}{'x' * 800}</Key><Size>1</Size></Contents>"
            for n in range(1000)
        )
        body = (
            f"<ListBucketResult><Name>b</Name><IsTruncated>true</IsTruncated>"
            f"<NextContinuationToken>{_Endless.page}</NextContinuationToken>{keys}</ListBucketResult>"
        ).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def endless() -> Iterator[BucketPlace]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Endless) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield BucketPlace(
            name="bucket",
            endpoint=f"http://127.0.0.1:{server.server_port}",
            bucket="bucket",
            prefix="",
            region="us-east-1",
            access_key="key",
            secret_key="secret",
        )
        server.shutdown()
        thread.join()


@pytest.mark.system
@pytest.mark.isolated
async def test_a_listing_that_never_ends_meets_the_bound_of_memory(
    endless: BucketPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "MOST_MEMORY", 160 * MIB)
    store = store_at(Path("/nowhere"), uuid4(), "key", endless)
    with trio.fail_after(100), pytest.raises(HostError, match="more memory than the 160 MiB") as refused:
        await store.unlock()
    assert refused.value.code is FailureCode.TARGET


@pytest.mark.parametrize(
    "raised", [SystemError("returned NULL without an exception"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad")]
)
async def test_a_binary_answer_of_a_guests_agent_is_an_agent_that_does_not_answer(raised: Exception) -> None:
    def answers(_: object) -> None:
        raise raised

    async with connected(Heard()) as connection:
        with pytest.raises(LibvirtError, match="does not answer correctly") as failed:
            await connection.call(answers)
    told = password_failed(failed.value, "root")
    assert (told.code, "whether the password was changed is not known" in told.message) == (FailureCode.TIMED_OUT, True)


STARTED_BY = {
    "hypervisor/programs.py",  # bounded: output, and memory of those that are named there
    "hypervisor/backups/running.py",  # bounded where `most_memory` is said
    "hypervisor/copy_files/reader.py",  # QEMU under an account of nobody
    "upgrade.py",  # the agent itself, of another release
    "releases.py",  # pip, with hashes
    "launcher.py",  # the agent itself
}


@pytest.mark.parametrize(
    "number",
    [
        libvirt.VIR_ERR_INTERNAL_ERROR,
        libvirt.VIR_ERR_OPERATION_INVALID,
        libvirt.VIR_ERR_AGENT_UNRESPONSIVE,
        libvirt.VIR_ERR_AGENT_UNSYNCED,
        libvirt.VIR_ERR_OPERATION_FAILED,
    ],
)
def test_what_a_guest_says_of_a_password_is_not_handed_on(number: int) -> None:
    said = "\x1b]0;PWNED\x07 <img src=x> \u202e"
    told = password_failed(LibvirtError(FailureCode.HOST, f"internal error: {said}", number), "root")
    assert "PWNED" not in f"{told.message} {told.hint}"
    assert "<img" not in f"{told.message} {told.hint}"


def test_programs_are_started_in_a_few_places_and_restic_never_without_a_bound() -> None:
    root = Path(svc_nodeagent.__path__[0])
    starting = set()
    for module in root.rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in (
                *("open_process", "run_process", "Popen", "check_output", "check_call"),
            ):
                starting.add(str(module.relative_to(root)))
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "subprocess.run":
                starting.add(str(module.relative_to(root)))
    assert starting == STARTED_BY
    tree = ast.parse((root / "hypervisor/backups/store.py").read_text())
    calls = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.Call) and ast.unparse(n.func) in ("program", "program_with_input")
    ]
    assert len(calls) == 3
    assert all("most_memory" in {each.arg for each in call.keywords} for call in calls)
