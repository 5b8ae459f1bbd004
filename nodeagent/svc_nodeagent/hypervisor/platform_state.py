"""The state of a machine's firmware and TPM: variables of the UEFI (`nvram.fd`, in the machine's folder), and the TPM's
own store, which libvirt has below `/var/lib/libvirt/swtpm`.

Invariants: the state belongs to the machine and is kept when its definition is removed; it is removed with the machine,
and reset when the machine is reinstalled. It is packed (`packed`, `restore_state`) into copies, into moves and with
retained disks, because data that a guest has sealed to its TPM can be opened only with the same TPM.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import tarfile
from pathlib import Path
from typing import Final
from uuid import UUID

from svc_nodeagent.durable import sync_folder, write_whole
from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.files import Folders
from svc_nodeagent.protocol import FailureCode

TPM_STATES: Final = Path("/var/lib/libvirt/swtpm")
"""libvirt's own folder (version 9.0 allows no other), with a folder for each machine, named by its UUID."""
_AUTHORITY: Final = Path("/var/lib/swtpm-localca")
"""The node's certificate authority, which signs the certificates of its TPMs. Debian's package makes swtpm's account
the owner of the folder."""
PACKED: Final = "platform.tar"
"""The name of a packed state in a copy, and of the one next to disks that are kept."""
MOST_BYTES: Final = 32 * 1024 * 1024
_MOST_FILES: Final = 4
"""swtpm has one or two files (`tpm2-00.permall`, and one of an earlier version)."""
_NVRAM: Final = "nvram.fd"
_TPM: Final = "tpm2"
_TPM_FILE: Final = re.compile(r"tpm2/[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def packed(folders: Folders, vm_id: UUID) -> bytes:
    """A tar of the existing state. The machine may be running: swtpm replaces its file atomically, and a UEFI writes
    its variables so that a power cut does no harm."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name, path in _files(folders, vm_id):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                # A temporary file that swtpm has renamed since it was listed.
                continue
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return content.getvalue()


def restore_state(folders: Folders, vm_id: UUID, content: bytes) -> None:
    """Give a machine that is off exactly the state in `content`. Raises `HostError(invalid)` if the state is invalid,
    and then changes nothing."""
    files = _unpacked(content)
    remove(folders, vm_id)
    for name, data in files.items():
        if name == _NVRAM:
            write_whole(folders.nvram(vm_id), bytes(data), mode=0o600)
        else:
            folder = _tpm_of(vm_id) / _TPM
            folder.mkdir(parents=True, exist_ok=True)
            _tpm_of(vm_id).chmod(0o711)
            folder.chmod(0o700)
            # When the machine is started, libvirt gives the file to swtpm's account.
            write_whole(_tpm_of(vm_id) / name, bytes(data), mode=0o600)


def give_back_authority() -> None:
    """Give the files of the node's authority to the owner of their folder. If libvirtd was started before swtpm was
    installed, it runs swtpm as root, and the files then belong to root. When libvirtd is restarted, it runs swtpm as
    swtpm's own account, which could then create no TPM."""
    try:
        owner = _AUTHORITY.stat().st_uid
    except FileNotFoundError:
        return
    for path in _AUTHORITY.iterdir():
        if path.lstat().st_uid != owner:
            os.chown(path, owner, -1, follow_symlinks=False)


def remove(folders: Folders, vm_id: UUID) -> None:
    """Remove the state of a machine that is off: at the machine's next start, its firmware and its TPM start empty."""
    nvram = folders.nvram(vm_id)
    if nvram.exists():
        nvram.unlink()
        sync_folder(nvram.parent)
    remove_tpm(vm_id)


def remove_tpm(vm_id: UUID) -> None:
    folder = _tpm_of(vm_id)
    if folder.exists():
        shutil.rmtree(folder)
        sync_folder(folder.parent)


def _tpm_of(vm_id: UUID) -> Path:
    return TPM_STATES / str(vm_id)


def _files(folders: Folders, vm_id: UUID) -> list[tuple[str, Path]]:
    found = [(_NVRAM, folders.nvram(vm_id))]
    for path in sorted((_tpm_of(vm_id) / _TPM).glob("*.permall")):
        found.append((f"{_TPM}/{path.name}", path))
    return found


def require_state(content: bytes) -> None:
    """Raise `HostError(invalid)` unless `content` is a valid packed state."""
    _unpacked(content)


def _unpacked(content: bytes) -> dict[str, memoryview]:
    """The files in the tar, as slices of `content`, so they are never larger than the archive. The headers are parsed
    here, because `tarfile` also accepts members that expand (sparse files of GNU and PAX) and headers that take minutes
    to parse."""
    if len(content) > MOST_BYTES:
        raise _unreadable()
    files: dict[str, memoryview] = {}
    whole, at = memoryview(content), 0
    while (header := content[at : at + tarfile.BLOCKSIZE]) != bytes(tarfile.BLOCKSIZE):
        try:
            member = tarfile.TarInfo.frombuf(header, "ascii", "strict")
        except (tarfile.TarError, ValueError) as error:
            raise _unreadable() from error
        begin = at + tarfile.BLOCKSIZE
        known = member.name == _NVRAM or _TPM_FILE.fullmatch(member.name)
        plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and 0 <= member.size <= len(content) - begin
        if not (known and plain) or member.name in files or len(files) == _MOST_FILES:
            raise _unreadable()
        files[member.name] = whole[begin : begin + member.size]
        at = begin + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
    return files


def _unreadable() -> HostError:
    return HostError(
        FailureCode.INVALID,
        "The received state of the machine's firmware and TPM is not valid; nothing was changed.",
        "Check that both nodes run the same release of the agent, and that the target has not changed data.",
    )
