"""A state of firmware and TPM that another host or a target made up: no more comes out of it than went in."""

from __future__ import annotations

import ast
import hashlib
import io
import tarfile
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import svc.controller
import svc_actors
import svc_nodeagent
from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor import platform_state
from svc_nodeagent.protocol import BackupResult, FailureCode, VmRestore
from tests.nodeagent.hypervisor.bare_machine import KEY, MIB, Machine, bare_machine, silent

END = bytes(2 * tarfile.BLOCKSIZE)


def _member(name: str, data: bytes = b"", *, kind: bytes = tarfile.REGTYPE) -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.type = len(data), kind
    return member.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % tarfile.BLOCKSIZE)


def _sparse(name: str, size: int) -> bytes:
    """Of the old GNU type: no data at all, and one hole at its end."""
    header = bytearray(_member(name, kind=tarfile.GNUTYPE_SPARSE))
    header[386:398], header[398:410] = b"%011o\0" % size, b"%011o\0" % 0
    header[483:495] = b"%011o\0" % size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def _pax_sparse(version: str, size: int) -> bytes:
    fields = {"GNU.sparse.name": "tpm2/a", "GNU.sparse.realsize": str(size), "GNU.sparse.size": str(size)}
    if version == "1.0":
        fields |= {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
    else:
        fields |= {"GNU.sparse.map": f"{size},0", "GNU.sparse.numblocks": "1"}
    with tarfile.open(fileobj=(content := io.BytesIO()), mode="w", format=tarfile.PAX_FORMAT) as made:
        member = tarfile.TarInfo("tpm2/GNUSparseFile.0/a")
        data = f"1\n{size}\n0\n".encode().ljust(tarfile.BLOCKSIZE, b"\0") if version == "1.0" else b""
        member.size, member.pax_headers = len(data), fields
        made.addfile(member, io.BytesIO(data))
    return content.getvalue()


def _slow_header() -> bytes:
    """A header of PAX that backtracks: minutes in `tarfile` of Python 3.11.2."""
    return _member("././@PaxHeader", b"1" * MIB, kind=tarfile.XHDTYPE) + _member("nvram.fd") + END


LARGE = 32 * MIB
HOSTILE = {
    "forty sparse members": b"".join(_sparse(f"tpm2/a{n}", LARGE) for n in range(40)) + END,
    "PAX sparse 0.1": _pax_sparse("0.1", LARGE),
    "PAX sparse 1.0": _pax_sparse("1.0", LARGE),
    "a header of PAX that backtracks": _slow_header(),
    "five members": b"".join(_member(f"tpm2/a{n}") for n in range(5)) + END,
    "two of one name": _member("nvram.fd", b"1") * 2 + END,
    "no end": _member("nvram.fd", b"1"),
    "a member that is longer than the tar": _member("nvram.fd", b"1" * 2048)[:1024],
    "nothing": b"",
}
TRUE = _member("nvram.fd", b"variables") + _member("tpm2/tpm2-00.permall", b"seeds") + END


@pytest.mark.parametrize("name", HOSTILE)
def test_a_made_up_state_is_refused_before_it_grows(name: str, tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(HostError) as refused:
            platform_state.require_state(HOSTILE[name])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused.value.code is FailureCode.INVALID
    assert peak < 4 * MIB


def test_four_members_of_the_largest_size_are_refused_without_a_copy_of_them() -> None:
    content = b"".join(_member(f"tpm2/a{n}", bytes(LARGE)) for n in range(4)) + END
    tracemalloc.start()
    try:
        with pytest.raises(HostError, match="not valid"):
            platform_state.require_state(content)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MIB


@pytest.fixture
async def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Machine]:
    monkeypatch.setattr(platform_state, "TPM_STATES", tmp_path / "swtpm")
    async with bare_machine(tmp_path, monkeypatch) as made:
        yield made


async def _copy_with(machine: Machine, state: bytes) -> BackupResult:
    made = await machine.back_up()
    assert made.state == "none"
    async with machine.store.writer(made.copy_id, platform_state.PACKED) as sink:
        await sink.send_all(state)
    machine.stop()
    return made


def _restoration(machine: Machine, made: BackupResult, state: str | None) -> VmRestore:
    return VmRestore(vm_id=machine.vm_id, copy_id=made.copy_id, password=KEY, disks=made.disks, state=state)


@pytest.mark.parametrize("state", ["none", "0" * 64, hashlib.sha256(TRUE + b"\0").hexdigest()])
async def test_a_state_that_is_not_the_recorded_one_is_no_restoration(machine: Machine, state: str) -> None:
    made = await _copy_with(machine, TRUE)
    before = machine.path.read_bytes()
    with pytest.raises(HostError, match="than was backed up; nothing was changed"):
        await machine.backups.restore(_restoration(machine, made, state), silent)
    assert machine.path.read_bytes() == before
    assert not machine.folders.nvram(machine.vm_id).exists()


async def test_a_made_up_state_of_a_copy_changes_nothing(machine: Machine) -> None:
    made = await _copy_with(machine, HOSTILE["forty sparse members"])
    before = machine.path.read_bytes()
    with pytest.raises(HostError) as refused:
        await machine.backups.restore(_restoration(machine, made, None), silent)
    assert refused.value.code is FailureCode.INVALID
    assert machine.path.read_bytes() == before


@pytest.mark.parametrize("state", [None, hashlib.sha256(TRUE).hexdigest()])
async def test_a_true_state_comes_back_also_where_its_digest_was_not_recorded(
    machine: Machine, state: str | None
) -> None:
    made = await _copy_with(machine, TRUE)
    await machine.backups.restore(_restoration(machine, made, state), silent)
    assert machine.folders.nvram(machine.vm_id).read_bytes() == b"variables"


UNPACKING = {"extractfile", "extractall", "decompress", "decompressobj", "ZipFile", "GzipFile", "LZMADecompressor"}
READ = {
    "nodeagent/svc_nodeagent/releases.py",  # the agent's own release, which the controller may have it run anyway
    "nodeagent/svc_nodeagent/hypervisor/rescued.py",  # two plain members of a bounded size each
}
"""What unpacks, each read when it was added: a new one has to bound what comes out of it."""


def test_nothing_else_unpacks_what_a_stranger_sent() -> None:
    root = Path(svc_nodeagent.__path__[0]).parent.parent
    folders = [Path(each) for each in (svc_nodeagent.__path__[0], svc.controller.__path__[0])]
    actors = Path(svc_actors.__path__[0])
    modules = [*actors.glob("*.py"), *(actors / "controller").rglob("*.py")]
    modules += [module for folder in folders for module in folder.rglob("*.py")]
    assert len(modules) > 200
    found = set()
    for module in modules:
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                opened = name == "open" and ast.unparse(node.func).split(".")[0] in ("tarfile", "gzip", "bz2", "lzma")
                writes = any(isinstance(each, ast.Constant) and str(each.value)[:1] == "w" for each in node.args)
                writes |= any(each.arg == "mode" and "'w" in ast.unparse(each) for each in node.keywords)
                if (name in UNPACKING or opened) and not writes:
                    found.add(str(module.relative_to(root)))
    assert found == READ
